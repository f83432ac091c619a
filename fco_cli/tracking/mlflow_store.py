"""tracking=mlflow: a run per record, nested below a run per sweep."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fco_cli.tracking.base import Sender, Sweep, TrackedRun, Tracking

RUN, SWEEP = "fco.run_id", "fco.sweep_id"  # tags
MOST_METRICS, MOST_PARAMS, LONGEST = 1000, 100, 500  # MLflow's limits: entries of a batch, length of a parameter
KIND = {"mlflow.experimentKind": "custom_model_development"}  # MLflow 3 then opens the list of runs
FILES = ("config.yaml", "result.json", "metrics.csv", "model.npz")


@dataclass(kw_only=True)
class MlflowTracking(Tracking):
    """MLflow server or database."""

    name: str = "mlflow"
    uri: str = "sqlite:///mlflow.db"  # database, or a server: http://host:port
    experiment: str = "fco"
    package = "mlflow"
    timeout: int = 30  # seconds of a request to a server

    @property
    def destination(self) -> str:  # type: ignore[override]
        return f"mlflow at {self.uri}"

    def open(self, sweep: Sweep) -> Sender:
        # One failed request is final: the client's own retries take minutes.
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(self.timeout)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        for name in ("alembic", "mlflow"):
            logging.getLogger(name).setLevel(logging.WARNING)
        return MlflowSender(self, sweep)


class MlflowSender(Sender):
    """Sender to an MLflow store."""

    def __init__(self, settings: MlflowTracking, sweep: Sweep) -> None:
        from mlflow.tracking import MlflowClient

        self.settings, self.sweep = settings, sweep
        self.client = MlflowClient(settings.uri)
        existing = self.client.get_experiment_by_name(settings.experiment)
        location = None
        if settings.uri.startswith("sqlite:///"):  # artifacts in the folder of the database
            location = Path(settings.uri.removeprefix("sqlite:///")).absolute().with_name("mlartifacts").as_uri()
        self.experiment = (
            existing.experiment_id if existing else self.client.create_experiment(settings.experiment, location, KIND)
        )
        self.parent = self._parent()

    def _search(self, tag: str, value: str) -> list[Any]:
        runs: list[Any] = []
        token = None
        while True:
            page = self.client.search_runs([self.experiment], f"tags.`{tag}` = '{value}'", page_token=token)
            runs += page
            if not (token := page.token):
                return runs

    def _parent(self) -> str | None:
        """Return the MLflow id of the sweep's run, which is created once; None for a single run."""
        if self.sweep.sweep_id is None:
            return None
        own = [run for run in self._search(SWEEP, self.sweep.sweep_id) if RUN not in run.data.tags]
        if own:
            return own[0].info.run_id
        tags = {SWEEP: self.sweep.sweep_id}
        return self.client.create_run(self.experiment, tags=tags, run_name=self.sweep.name).info.run_id

    def sent(self) -> Collection[str]:
        if self.sweep.sweep_id is None:
            return set()
        complete: set[str] = set()
        for run in self._search(SWEEP, self.sweep.sweep_id):
            if run_id := run.data.tags.get(RUN):
                self._keep_complete(run, complete, run_id)
        return complete

    def _keep_complete(self, run: Any, complete: set[str], run_id: str) -> None:
        """Add a run to `complete`, or delete it if its upload was interrupted."""
        if run.info.status == "RUNNING":
            self.client.delete_run(run.info.run_id)
        else:
            complete.add(run_id)

    def send(self, run: TrackedRun) -> None:
        from mlflow.entities import Metric, Param

        if self.sweep.sweep_id is None:
            complete: set[str] = set()
            for other in self._search(RUN, run.run_id):
                if SWEEP not in other.data.tags:
                    self._keep_complete(other, complete, run.run_id)
            if complete:
                return
        tags = {RUN: run.run_id, "fco.algo": run.algo, "fco.status": run.status, "fco.folder": str(run.folder)}
        if self.parent is not None:
            tags |= {SWEEP: str(self.sweep.sweep_id), "mlflow.parentRunId": self.parent}
        start = int(1000 * run.finished_at)
        own = self.client.create_run(self.experiment, start, tags, run.name).info.run_id
        params = [Param(key, str(value)[:LONGEST]) for key, value in run.settings.items()]
        metrics = [
            Metric(name.replace("(", "_").replace(")", "").replace("=", "-"), value, start, step)
            for step, values in run.points(self.settings.points)
            for name, value in values.items()
        ]
        for low in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(own, params=params[low : low + MOST_PARAMS])
        for low in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(own, metrics=metrics[low : low + MOST_METRICS])
        for name in FILES:
            if (run.folder / name).exists():
                self.client.log_artifact(own, str(run.folder / name))
        self.client.set_terminated(own, "FINISHED" if run.status == "finished" else "FAILED", start)

    def send_figures(self, figures: Iterable[tuple[str, bytes]]) -> None:
        if self.parent is None:
            return
        for name, png in figures:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"{name}.png"
                path.write_bytes(png)
                self.client.log_artifact(self.parent, str(path), "figures")

    def close(self) -> None:
        if self.parent is not None:
            self.client.set_terminated(self.parent)
