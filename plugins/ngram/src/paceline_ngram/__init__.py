"""Prompt lookup for Paceline: drafts are copied from what followed the same tokens earlier in the request."""
