"""Models: kernels from parameters to scores (forward) and from slopes to gradients (backward)."""
