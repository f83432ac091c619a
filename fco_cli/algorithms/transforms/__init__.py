"""Transforms of client messages (config group `transform`), one module per transform."""

from fco_cli.algorithms.transforms.base import Evaluated, NoTransform, Transform, all_transforms

__all__ = ["Evaluated", "NoTransform", "Transform", "all_transforms"]
