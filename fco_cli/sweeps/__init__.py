"""Sweeps: many runs at once, as stacks over processes or a cluster."""
