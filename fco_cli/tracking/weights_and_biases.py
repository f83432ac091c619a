"""tracking=wandb: a Weights & Biases run per record, in a group per sweep; offline by default."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fco_cli.errors import require
from fco_cli.tracking.base import Sender, Sweep, TrackedRun, Tracking

MODES = ("offline", "online")


@dataclass(kw_only=True)
class WandbTracking(Tracking):
    """Weights & Biases."""

    name: str = "wandb"
    project: str = "fco"
    mode: str = "offline"  # `wandb sync` uploads the runs later
    path: str = "."  # folder that receives the folder wandb/
    package = "wandb"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mode in MODES, "tracking.mode", self.mode, "one of " + ", ".join(MODES))

    @property
    def destination(self) -> str:  # type: ignore[override]
        return f"wandb, {self.mode} in {self.path}"

    def open(self, sweep: Sweep) -> Sender:
        return WandbSender(self, sweep)


class WandbSender(Sender):
    """Sender to wandb; the id of a run is its run id."""

    def __init__(self, settings: WandbTracking, sweep: Sweep) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self.settings, self.sweep = settings, sweep
        self.mode: Literal["offline", "online"] = "online" if settings.mode == "online" else "offline"
        self.folder = Path(settings.path) / "wandb"
        Path(settings.path).mkdir(parents=True, exist_ok=True)

    def sent(self) -> Collection[str]:
        """Return the runs whose offline folder is marked as complete; an online run continues under its id."""
        return {path.parent.name.rpartition("-")[2] for path in self.folder.glob("*run-*-*/complete")}

    def send(self, run: TrackedRun) -> None:
        import wandb

        group = None if self.sweep.sweep_id is None else f"{self.sweep.name}-{self.sweep.sweep_id}"
        with wandb.init(
            project=self.settings.project, dir=self.settings.path, mode=self.mode, id=run.run_id,
            name=run.name, group=group, config=dict(run.settings), resume="allow", reinit="finish_previous",
        ) as own:  # fmt: skip
            for step, values in run.points(self.settings.points):
                own.log(values, step=step)
            own.summary.update({key: value for key, value in run.final.items() if value is not None})
            artifact = wandb.Artifact(f"model-{run.run_id}", "model")
            artifact.add_file(str(run.folder / "model.npz"))
            own.log_artifact(artifact)
            folder = Path(own.dir).parent
        (folder / "complete").touch()

    def send_figures(self, figures: Iterable[tuple[str, bytes]]) -> None:
        """Send the figures as a run of the group."""
        import tempfile

        import wandb

        group = f"{self.sweep.name}-{self.sweep.sweep_id}"
        with (
            tempfile.TemporaryDirectory() as folder,
            wandb.init(
                project=self.settings.project, dir=self.settings.path, mode=self.mode, group=group,
                id=f"figures-{self.sweep.sweep_id}", name="figures", resume="allow", reinit="finish_previous",
            ) as own,
        ):  # fmt: skip
            for name, png in figures:
                (path := Path(folder) / f"{name}.png").write_bytes(png)
                own.log({name: wandb.Image(str(path))})
