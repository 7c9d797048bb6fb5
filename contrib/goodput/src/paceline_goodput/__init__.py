"""A speculation controller for Paceline: each step drafts what is expected to give the most tokens a second."""
