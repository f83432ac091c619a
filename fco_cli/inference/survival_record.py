"""Files of experiment=glm for a Cox model.

survival.csv              Kaplan-Meier curve of every client; survival.png: the same with numbers at risk
baseline.csv              baseline cumulative hazard of every client
proportional_hazards.csv  score tests of proportional hazards
calibration.csv, .png     predicted and observed risk until glm.horizon
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fco_cli.config.schemas import GlmSettings
from fco_cli.errors import require
from fco_cli.files import write_atomically
from fco_cli.inference.estimate import Estimates
from fco_cli.inference.sums import call
from fco_cli.inference.survival_checks import concordance_lines, proportional_hazards_lines
from fco_cli.inference.survival_curves import FittedCox
from fco_cli.inference.survival_figures import as_png, calibration_figure, survival_figure
from fco_cli.path.record import csv_of_lines
from fco_cli.problem.data import RemoteRows
from fco_cli.problem.losses.survival import Cox
from fco_cli.problem.problem import Problem


@dataclass(frozen=True)
class SurvivalAnalysis:
    """Curves and checks of a Cox model, as lines of tables."""

    settings: GlmSettings
    survival: list[dict[str, Any]] = field(default_factory=list)
    baseline: list[dict[str, Any]] = field(default_factory=list)
    proportional_hazards: list[dict[str, Any]] = field(default_factory=list)
    concordance: list[dict[str, Any]] = field(default_factory=list)
    calibration: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, problem: Problem, estimates: Estimates, settings: GlmSettings, bits: int | None = None,
        retry: Callable[[Callable[[], Any]], Any] = call,
    ) -> SurvivalAnalysis | None:  # fmt: skip
        """Return the analysis of a Cox model; None for another loss. A debiased fit has Kaplan-Meier curves only.

        `bits` and `retry` are those of the sums over clients (`SumOptions`).
        """
        horizon = settings.horizon
        if not isinstance(problem.loss, Cox):
            require(horizon is None, "glm.horizon", horizon, f"null for the {problem.loss.name} loss (task.loss=cox)")
            return None
        min_cell, notes = settings.min_cell, list[str]()
        if isinstance(problem.data, RemoteRows):
            min_cell = max(min_cell, problem.data.smallest_cell)
            if (reason := problem.data.why_no_tables) is not None:
                require(horizon is None, "glm.horizon", horizon, f"null: {reason}")
                notes.append(f"no survival curves and tests of proportional hazards: {reason}")
        model = FittedCox(problem, estimates, min_cell, bits)
        return retry(lambda: cls._of_model(model, settings, min_cell, estimates.is_debiased, notes))

    @classmethod
    def _of_model(
        cls, model: FittedCox, settings: GlmSettings, min_cell: int, is_debiased: bool, notes: list[str]
    ) -> SurvivalAnalysis:
        horizon, notes = settings.horizon, list(notes)
        if horizon is not None and (longest := model.longest) is not None:
            require(horizon <= longest, "glm.horizon", horizon, f"a time until the longest of the table, {longest:g}")
        if min_cell > 1 and not notes:
            notes.append(f"times of curves and tests are coarsened: at least {min_cell} events in every interval")
        if model.tables and model.withheld:
            notes.append(f"too few rows for coarsened curves, or not shared: {', '.join(model.withheld)}")
        curves = model.survival_lines(settings.level)
        if is_debiased:
            return cls(settings, curves, notes=notes)
        calibration = [] if horizon is None else model.calibration_lines(horizon, settings.level)
        if horizon is not None and not calibration:
            notes.append("no calibration: too few rows with and without events until the horizon")
        if calibration:
            notes.append("calibration and concordance refer to the rows of the fit, which favors the model")
        return cls(
            settings, curves, model.baseline_lines(), proportional_hazards_lines(model, settings.time_transform),
            concordance_lines(model), calibration, notes,
        )  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write all tables that have lines, and the figures."""
        for name in ("survival", "baseline", "proportional_hazards", "calibration"):
            if lines := getattr(self, name):
                write_atomically(folder / f"{name}.csv", csv_of_lines(lines))
        if self.survival:
            write_atomically(folder / "survival.png", as_png(survival_figure(self.survival)))
        if self.calibration:
            assert self.settings.horizon is not None
            figure = calibration_figure(self.calibration, self.settings.horizon, self.settings.level)
            write_atomically(folder / "calibration.png", as_png(figure))

    @property
    def result(self) -> dict[str, Any]:
        """Return the part of result.json."""
        return {
            "concordance": self.concordance,
            "proportional_hazards": self.proportional_hazards,
            "time_transform": self.settings.time_transform,
            "horizon": self.settings.horizon,
        }
