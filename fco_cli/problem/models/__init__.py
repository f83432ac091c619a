"""Models: parameters to scores, and slopes of scores back to gradients."""
