"""BERT classification with metrics read in the training step."""
