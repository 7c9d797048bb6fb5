"""From logits to tokens: request parameters, the logits pipeline, counter-based noise and the choice."""
