"""A top-2 mixture of experts with a Python loop over the experts."""
