"""Request states, the scheduler, the step and the front ends."""
