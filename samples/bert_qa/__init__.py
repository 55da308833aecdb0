"""BERT question answering over standard library source."""
