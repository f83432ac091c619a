"""Optimization problems: data, losses, models, regularizers and mirror maps."""
