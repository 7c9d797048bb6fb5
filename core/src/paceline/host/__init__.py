"""Finds, checks and builds plugins. Nothing that the configuration does not name is imported."""
