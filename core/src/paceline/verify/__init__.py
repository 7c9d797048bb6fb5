"""Acceptance of drafts as pure functions on tensors: a draft is followed as long as it equals the target's choice."""
