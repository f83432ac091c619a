"""Transforms of client messages (config group `transform`), one module per transform."""

from fco_cli.algorithms.transforms.base import Evaluations, NoTransform, Releases, Transform, all_transforms

__all__ = ["Evaluations", "NoTransform", "Releases", "Transform", "all_transforms"]
