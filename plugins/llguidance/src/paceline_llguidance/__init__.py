"""Structured outputs for Paceline through llguidance: JSON schemas, regular expressions, choices and grammars."""
