"""Selection of the regularization strength: paths of models, cross-validation, stability selection (docs/path.md)."""
