"""Tensor bodies of the core: paged attention, KV writes and moves, exact CPU kernels."""
