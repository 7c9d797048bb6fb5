"""Draft-model speculation for Paceline: a smaller model of the same family drafts a chain of tokens."""
