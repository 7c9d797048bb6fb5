"""The paged KV cache: identity, blocks, prefix index, eviction, and the manager that owns them."""
