"""Loading with transformers, the paged attention bridge, the runner, the load check and the memory for KV."""
