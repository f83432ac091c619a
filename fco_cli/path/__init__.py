"""Choosing how strong a regularizer is: the path of models, cross-validation, stability (docs/path.md)."""
