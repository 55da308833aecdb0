"""GPT-2 on the standard library's source."""
