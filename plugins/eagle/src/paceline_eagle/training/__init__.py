"""Training of a head: corpus, training, measurement."""
