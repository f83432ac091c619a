"""Records as trackers receive them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from fco_cli.reporting.records.runs import RecordedRun, flatten, read_record
from fco_cli.tracking import TrackedRun


def tracked_run(record: RecordedRun | Path) -> TrackedRun:
    """Return the content of a finished record for a tracker."""
    run = read_record(record) if isinstance(record, Path) else record
    settings = {key: value for key, value in flatten(run.config).items() if not key.startswith("tracking.")}
    return TrackedRun(
        folder=run.folder,
        run_id=run.result["run_id"],
        algo=run.algo,
        settings=settings,
        final={**run.result["final"], **run.result.get("test", {})},
        curves=run.curves,
        status=run.result["status"],
        finished_at=datetime.fromisoformat(run.result["finished_at"]).timestamp(),
    )


def sweep_figures(folders: list[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield the figure of curves of every study of some records, as PNG by name."""
    from matplotlib import pyplot

    from fco_cli.reporting.figures.curves import draw_panels
    from fco_cli.reporting.records.select import choose
    from fco_cli.reporting.records.studies import collect

    for study in collect(folders).studies:
        figure, png = draw_panels(study, choose(study)), io.BytesIO()
        figure.savefig(png, format="png")
        pyplot.close(figure)
        yield study.slug, png.getvalue()
