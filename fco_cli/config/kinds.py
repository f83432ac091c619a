"""Configurations of the experiments that replace a run: `experiment=path`, `glm` and `table1`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from omegaconf import DictConfig

from fco_cli.code_digest import Definition
from fco_cli.config.run import Run
from fco_cli.config.schemas import GlmSettings, PathSettings, Table1Settings
from fco_cli.errors import require


@dataclass
class PathRun(Run):
    """Configuration of experiment=path, which selects the strength or the radius of the regularizer."""

    path: PathSettings

    execution: ClassVar[Definition] = ("fco_cli.path.record", "run_path")
    settings: ClassVar[dict[str, type]] = {"path": PathSettings}

    @property
    def folder(self) -> Path:
        """Folder of the record, below that of the requested method; `auto` if the data determine it."""
        name = self.path.algo if self.path.algo != "auto" or self.algo.name == "fista" else self.algo.name
        return self.output_dir / self.task.name / name / self.run_id

    @property
    def selected_parameter(self) -> str:
        return "strength" if hasattr(self.regularizer, "strength") else "radius"

    def check_combinations(self) -> None:
        super().check_combinations()
        self.network.check_absent("experiment=path")
        model = self.task.model
        require(model.convex, "model", model.name, "convex with experiment=path")
        allowed = "an experiment without a path, which needs exact sums: federation.evaluation_noise is set"
        require(not self.has_noise, "experiment", "path", allowed)
        allowed = f"none with experiment=path, which needs exact sums over rows: {self.transform.name} hides rows"
        require(not self.transform.protects_rows, "transform", self.transform.name, allowed)


@dataclass
class GlmRun(Run):
    """Configuration of experiment=glm, which estimates coefficients with standard errors."""

    glm: GlmSettings

    execution: ClassVar[Definition] = ("fco_cli.inference.record", "run_glm")
    settings: ClassVar[dict[str, type]] = {"glm": GlmSettings}

    @property
    def folder(self) -> Path:
        return self.output_dir / self.task.name / self.run_id

    def check_combinations(self) -> None:
        super().check_combinations()
        self.network.check_absent("experiment=glm")
        require(self.task.model.convex, "model", self.task.model.name, "linear with experiment=glm")
        require(self.transform.name == "none", "transform", self.transform.name, "none with experiment=glm")
        allowed = "examples with experiment=glm: the likelihood counts every row once"
        require(self.hparams.weighting == "examples", "hparams.weighting", self.hparams.weighting, allowed)
        require(self.hparams.dtype == "float64", "hparams.dtype", self.hparams.dtype, "float64 with experiment=glm")


@dataclass
class Table1Run(Run):
    """Configuration of experiment=table1, which describes the rows of every client."""

    table1: Table1Settings

    execution: ClassVar[Definition] = ("fco_cli.table1.record", "run_table1")
    settings: ClassVar[dict[str, type]] = {"table1": Table1Settings}

    @property
    def folder(self) -> Path:
        return self.output_dir / self.task.name / self.run_id

    def check_combinations(self) -> None:
        super().check_combinations()
        self.network.check_absent("experiment=table1")


def kind_of(config: DictConfig) -> str:
    """Return the kind of experiment that a configuration describes: run, or the key that replaces the run."""
    return next((kind for kind in ("theory", "path", "glm", "table1") if config[kind] is not None), "run")
