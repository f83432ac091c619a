"""What messages go through on their way to the server: the `transform` group, one file per transform."""

from fco_cli.algorithms.transforms.base import Evaluated, NoTransform, Transform, all_transforms

__all__ = ["Evaluated", "NoTransform", "Transform", "all_transforms"]
