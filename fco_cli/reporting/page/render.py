"""The renderer of a report: files of figures (PNG, PDF, CSV) and tables (CSV, Markdown, LaTeX), and the HTML page."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fco_cli import __version__
from fco_cli.files import write_atomically
from fco_cli.reporting.claims.ledger import (
    NOT_RUN,
    PREVIEWS,
    REPRODUCED,
    VERDICTS,
    Entry,
    headline,
    preview_profiles,
)
from fco_cli.reporting.figures import drawing
from fco_cli.reporting.objects import Figure, Section, Table
from fco_cli.reporting.page.scripts import compress, players_of, runs_data
from fco_cli.reporting.page.sections import sort_studies
from fco_cli.reporting.page.tables import as_latex, as_markdown, as_numbers, as_text, own_results
from fco_cli.reporting.records.design import is_shipped
from fco_cli.reporting.records.studies import RecordedStudy, Results, parallel_map
from fco_cli.reporting.text import as_csv, for_markdown, printable

if TYPE_CHECKING:
    from fco_cli.reporting.report import Report

PIXELS, COLORS = 600, 48  # width and colors of an embedded figure; fewer colors would lose the light bands
WIDE_PIXELS = 1200  # width of a figure that spans a journal page
PLURALS = {"fit with standard errors": "fits with standard errors", "table 1": "tables 1"}
MIN_PARALLEL = 3  # folded sections that are drawn in several processes

Context = dict[str, Any]


# Sections: writes their files, and returns their contexts of the template.


def render_section(folder: Path, section: Section, parallel: bool = True) -> Context:
    """Write the files of a section to the report's folder; return its template context.

    Folded sections are drawn in parallel, which requires that their drawing functions can be imported.
    """
    for name, content in section.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content)
    draw = partial(render_section, folder)
    return {
        "slug": section.slug,
        "heading": section.heading,
        "menu": section.menu or section.heading,
        "number": section.number,
        "command": section.command,
        "warning": section.warning,
        "text": section.text,
        "links": section.links,
        "figures": [_render_figure(folder, figure) for figure in section.figures],
        "notes": section.notes,
        "pages": [(_page_title(name), name) for name in section.files if name.endswith(".html")],
        "tables": [_render_table(folder, table) for table in section.tables],
        "sections": parallel_map(draw, section.sections, MIN_PARALLEL if parallel else len(section.sections) + 1),
        "study": _study_context(section.study) if section.study else None,
        "claims": "",
        "moves": False,
    }


def _page_title(name: str) -> str:
    return Path(name).stem.replace("_", " ")


def _render_figure(folder: Path, figure: Figure) -> Context:
    links = []
    if isinstance(figure.draw, bytes):
        png = figure.draw
    else:
        target = folder / "figures" / figure.name
        png = drawing.save(figure.draw(), target)[0].read_bytes()
        links = [("PDF", f"figures/{figure.name}.pdf"), ("PNG", f"figures/{figure.name}.png")]
    if figure.numbers is not None:
        write_atomically(folder / "figures" / f"{figure.name}.csv", as_csv(figure.numbers).encode())
        links.insert(1, ("CSV", f"figures/{figure.name}.csv"))
    return {
        **_picture(png, WIDE_PIXELS if figure.wide else PIXELS),
        "id": f"figure-{figure.name}",
        "alt": figure.alt or figure.caption,
        "number": figure.number,
        "caption": figure.caption,
        "links": links,
        "wide": figure.wide,
    }


def _picture(png: bytes, pixels: int) -> Context:
    """Return a PNG as an embedded WebP image, reduced in resolution and colors to keep the page small."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        height = round(image.height * pixels / image.width)
        small = image.convert("RGB").resize((pixels, height), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    # Octree quantization preserves the colors of small marks; median cut weights colors by area.
    quantized = small.quantize(COLORS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).convert("RGB")
    quantized.save(content, "WEBP", lossless=True, method=6)
    uri = "data:image/webp;base64," + base64.b64encode(content.getvalue()).decode()
    return {"uri": uri, "width": pixels, "height": height}


def _render_table(folder: Path, table: Table) -> Context:
    if table.name:
        for suffix in table.formats:
            write_atomically(folder / "tables" / f"{table.name}.{suffix}", _table_file(table, suffix).encode())
    shown = as_text(table.frame) if table.shown is None else table.shown
    return {
        "columns": list(shown.columns),
        "rows": shown.to_numpy().tolist(),
        "caption": table.caption,
        "folded": table.folded,
        "link": f"tables/{table.name}.csv" if table.name and "csv" in table.formats else "",
    }


def _table_file(table: Table, suffix: str) -> str:
    if suffix == "csv":
        return as_csv(as_numbers(table.frame))
    text = table.frame if table.shown is None else table.shown
    if suffix == "tex":
        return as_latex(text, table.caption)
    return f"{for_markdown(table.caption)}\n\n{as_markdown(text)}"


def _study_context(study: RecordedStudy) -> Context:
    shared = {key: study.runs[0].config[key] for key in ("task", "regularizer", "hparams")}
    shared["hparams"] = {key: value for key, value in shared["hparams"].items() if not key.endswith("_lr")}
    return {
        "slug": study.slug,
        "name": study.name,
        "shipped": is_shipped(study),
        "twin": bool(study.twin_of),
        "runs": len(study.runs),
        "config": yaml.safe_dump(shared, sort_keys=False),
        "versions": _versions(study),
    }


def _versions(study: RecordedStudy) -> list[str]:
    """Return every distinct combination of software versions in the study's records."""
    lines = []
    for run in study.runs:
        versions = {"python": run.result["python"], **run.result["versions"]}
        line = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        revision = run.result["git_revision"]
        lines.append(line + (f", revision {revision[:12]}" if revision else ""))
    return list(dict.fromkeys(lines))


# The page.


def render_page(results: Results, report: Report, sections: list[Context], first: list[Context]) -> str:
    """Return the page as HTML; the figures of its summary are those of the `first` sections."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fco_cli.reporting.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    players = players_of(report.studies, report.choices, results.damaged)
    by_slug = {study.slug: study for study in report.studies}
    for section in sections:
        if section["study"]:
            section["claims"] = claims_of(by_slug[section["slug"]], report.ledger)
            section["moves"] = section["slug"] in players
    return environment.get_template("report.html").render(
        version=__version__,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        sources=_sources(results),
        results=own_results(results, sort_studies(report.studies), report.choices),
        claims=claims_context(report, results),
        sections=sections,
        has_runs=bool(report.studies),
        first_figures=_summary_figures(first, report.highlights),
        left_out=[(printable(str(path), max_length=4096), why) for path, why in results.left_out + results.damaged],
        data=compress(runs_data(report.studies)),
        players=compress(players),
    )


def _sources(results: Results) -> str:
    """Describe the sources of the report, as in "3 runs and 1 path"."""
    counts = {"run": sum(len(study.runs) for study in results.studies), "path": len(results.paths)}
    counts |= {"fit with standard errors": len(results.glms), "table 1": len(results.tables)}
    texts = [f"{n} {name if n == 1 else PLURALS.get(name, name + 's')}" for name, n in counts.items() if n]
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def _summary_figures(sections: list[Context], highlights: list[str]) -> list[Context]:
    """Return up to three figures for the summary; none if only one section has figures, as it follows the summary."""
    drawn = [one for one in sections if one["figures"]]
    if len(drawn) < 2:
        return []
    shipped = {one["study"]["name"]: one for one in reversed(drawn) if one["study"] and one["study"]["shipped"]}
    others = [one for one in drawn if not (one["study"] and one["study"]["shipped"])]
    chosen = [*others, *(shipped.pop(name) for name in highlights if name in shipped), *reversed(shipped.values())][:3]
    return [
        {"slug": one["slug"], "title": one["heading"], "id": one["figures"][0]["id"], "alt": one["heading"]}
        for one in chosen
    ]


def claims_context(report: Report, results: Results) -> dict[str, Any] | None:
    """Return the template context of the ledger; None if the report has none."""
    ledger = report.ledger
    if not ledger:
        return None
    entries = [_entry_context(i, entry, results) for i, entry in enumerate(ledger)]
    return {
        "heading": report.claims_heading,
        "notes": report.claims_notes,
        "headline": headline(ledger),
        "labels": PREVIEWS if preview_profiles(ledger) else {verdict: verdict for verdict in VERDICTS},
        "verdicts": {verdict: sum(entry.verdict == verdict for entry in ledger) for verdict in VERDICTS},
        "groups": _groups(ledger),
        "failed": _by_text(entry for entry in entries if entry["verdict"] not in (REPRODUCED, NOT_RUN)),
        "ledger": entries,
    }


def claims_of(study: RecordedStudy, ledger: list[Entry]) -> str:
    """Describe how many claims about a study are reproduced, or hold in a preview; empty if none is judged."""
    entries = [entry for entry in ledger if (entry.experiment, entry.profile) == (study.name, study.profile)]
    judged = [entry.verdict for entry in entries if entry.verdict != NOT_RUN]
    verdict = "hold (preview)" if preview_profiles(entries) else "reproduced"
    return f"{judged.count(REPRODUCED)} of {len(judged)} claims {verdict}" if judged else ""


def _by_text(entries: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group entries by the statement that they test."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(entry["text"], []).append(entry)
    return groups


def _entry_context(number: int, entry: Entry, results: Results) -> dict[str, Any]:
    study = results.study(entry.experiment) if entry.has_records else None
    return {
        "number": number,
        "slug": study.slug if study else entry.experiment if entry.has_records else "",
        "id": entry.claim.id,
        "text": entry.claim.text,
        "source": entry.claim.source,
        "reading": entry.claim.reading,
        "why_not": entry.claim.why_not if entry.verdict not in (REPRODUCED, NOT_RUN) else "",
        "group": entry.claim.group,
        "experiment": entry.experiment,
        "verdict": entry.verdict,
        "label": entry.label,
        "claimed": entry.claimed,
        "measured": entry.measured,
        "sensitivity": entry.sensitivity,
    }


def _groups(ledger: list[Entry]) -> dict[str, Counter[str]]:
    """Count the verdicts by part of the ledger; parts without a judged claim are left out."""
    counts: dict[str, Counter[str]] = {}
    for entry in ledger:
        counts.setdefault(entry.claim.group, Counter())[entry.verdict] += 1
    return {group: count for group, count in counts.items() if set(count) != {NOT_RUN}}
