"""Numerical checks of the theorems, from the record of `experiment=theory`."""

from __future__ import annotations

from fco_cli.reporting import (
    BadRecord,
    Figure,
    Finding,
    Needs,
    NotRun,
    Results,
    Section,
    Table,
    of_all_results,
    shipped_theory,
)

CAPTION = "Measured values (solid) and bounds (dashed) against R, K, M and the step size."


def theory_section(results: Results) -> Section | None:
    """Return the section of the theorems; None if they were not checked or the figure is damaged."""
    import pandas as pd

    theorems = results.theory
    if theorems is None:
        return None
    try:
        picture = theorems.figure()
    except BadRecord as problem:
        results.damaged.append((theorems.folder, str(problem)))
        return None
    frame = pd.DataFrame(theorems.table[1:], columns=theorems.table[0])
    return Section(
        "theory",
        "Numerical checks of the theorems",
        figures=[Figure("theory", picture, CAPTION, alt="Bounds of the theorems against measurements")],
        tables=[Table(frame, caption="Slopes are measured / bound, on logarithmic axes.", shown=frame)],
        menu="Theorems",
        command="fco-theory",
    )


@of_all_results
def bound_holds(results: Results, statement: str) -> Finding:
    """Test that the bound holds in every cell of the grid of rounds, steps, clients and rates."""
    theorems = results.theory
    if theorems is None:
        raise NotRun("no records of theory", Needs.EXPERIMENT)
    if theorems.grid != shipped_theory():
        raise NotRun("altered: the grid differs from that of the shipped experiment=theory")
    if statement not in theorems.statements:
        raise NotRun(f"no statement {statement!r} in the records of theory")
    cells, violated, slack = theorems.statements[statement]
    measured: dict[str, float | str] = {"violated": f"in {violated} of {cells} cells", "smallest slack": slack}
    return Finding(violated == 0, "the bound holds in every cell", measured)
