"""tracking=tensorboard: a folder of events per run, below a folder per sweep."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fco_cli.tracking.base import Sender, Sweep, TrackedRun, Tracking
from fco_cli.typed_files import read_arrays

LARGEST_MODEL = 256 << 20  # bytes
PART = ".part-"


@dataclass(kw_only=True)
class TensorboardTracking(Tracking):
    """TensorBoard event files, written by tensorboardX."""

    name: str = "tensorboard"
    path: str = "tensorboard"  # folder of the logs: tensorboard --logdir tensorboard
    package = "tensorboardX"

    @property
    def destination(self) -> str:  # type: ignore[override]
        return f"tensorboard logs in {self.path}"

    def open(self, sweep: Sweep) -> Sender:
        return TensorboardSender(self, sweep)


class TensorboardSender(Sender):
    """Sender to event files; the folder of a run appears when it is complete."""

    def __init__(self, settings: TensorboardTracking, sweep: Sweep) -> None:
        self.settings = settings
        name = sweep.name if sweep.sweep_id is None else f"{sweep.name}-{sweep.sweep_id}"
        self.folder = Path(settings.path) / name
        self.folder.mkdir(parents=True, exist_ok=True)

    def sent(self) -> Collection[str]:
        return {path.name.rpartition("-")[2] for path in self.folder.iterdir() if not path.name.startswith(PART)}

    def send(self, run: TrackedRun) -> None:
        from tensorboardX import SummaryWriter
        from tensorboardX.proto.summary_pb2 import Summary

        temporary = self.folder / f"{PART}{run.name}"
        shutil.rmtree(temporary, ignore_errors=True)
        with SummaryWriter(str(temporary)) as writer:
            for step, values in run.points(self.settings.points):
                scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
                writer.file_writer.add_summary(Summary(value=scalars), step, run.finished_at)  # one event per round
            writer.add_text(
                "config", "    " + json.dumps(dict(run.settings), indent=1, default=str).replace("\n", "\n    ")
            )
            for name, weights in read_arrays(run.folder / "model.npz", LARGEST_MODEL).items():
                if weights.size and np.isfinite(weights).all():
                    writer.add_histogram(f"model/{name}", weights.ravel(), run.points(2)[-1][0])
        if not list(temporary.glob("events*")):
            raise OSError(f"{temporary}: no events were written")
        os.replace(temporary, self.folder / run.name)

    def send_figures(self, figures: Iterable[tuple[str, bytes]]) -> None:
        from PIL import Image
        from tensorboardX import SummaryWriter

        with SummaryWriter(str(self.folder / "figures")) as writer:
            for name, png in figures:
                with Image.open(io.BytesIO(png)) as image:
                    writer.add_image(name, np.asarray(image.convert("RGB")), dataformats="HWC")
