"""A speculation controller for Paceline: each step drafts what is expected to make the requests the fastest."""
