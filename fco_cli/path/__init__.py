"""Selection of the regularization strength along a path of models (docs/path.md).

`solve.py` defines the path and its models, `select.py` the cross-validation, both selected models
and the stability selection, `performance.py` the metrics, and `record.py` the record.
"""

__all__ = ["performance", "record", "select", "solve"]
