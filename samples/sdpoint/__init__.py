"""Stochastic down-sampling points in a residual net."""
