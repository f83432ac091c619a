"""Transforms of client messages (config group `transform`), one module per transform."""

from fco_cli.algorithms.transforms.base import Evaluations, NoTransform, Transform, all_transforms

__all__ = ["Evaluations", "NoTransform", "Transform", "all_transforms"]
