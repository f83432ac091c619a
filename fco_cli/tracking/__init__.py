"""Tracking: finished records are sent to MLflow, TensorBoard, Weights & Biases or CSV tables (docs/tracking.md)."""

from fco_cli.tracking.base import NoTracking, Sender, Sweep, TrackedRun, Tracking, all_trackings
from fco_cli.tracking.upload import Upload

__all__ = ["NoTracking", "Sender", "Sweep", "TrackedRun", "Tracking", "Upload", "all_trackings"]
