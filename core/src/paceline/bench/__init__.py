"""``paceline bench``: the same prompts through transformers and Paceline, measured and compared token for token."""
