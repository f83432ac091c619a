"""Selection of the regularization strength along a path of models (docs/path.md).

`values.py` defines the path, `solve.py` its models, `select.py` the cross-validation and both selected models,
`stability.py` the stability selection, `performance.py` the metrics, and `record.py` the record.
"""

__all__ = ["performance", "record", "select", "solve", "stability", "values"]
