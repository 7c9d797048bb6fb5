"""EAGLE speculation for Paceline: a one-layer head drafts chains or trees from the target's own features."""
