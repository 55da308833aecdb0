"""An LSTM written by hand over lines of different lengths."""
