from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from fco_cli.algorithms import all_algorithms
from fco_cli.reporting.figures import curves, drawing, sweeps
from fco_cli.reporting.records.select import choose, in_order
from fco_cli.reporting.records.studies import collect
from fco_cli.reporting.style import SPARE_COLORS, algorithm_order, algorithm_style
from fco_cli.studies.yuan2021 import Yuan2021, robustness

CLIENT_RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1)
SERVER_RATES = (0.01, 0.03, 0.1, 0.3, 1, 3, 10)


def study_of(records):
    (study,) = collect([records.root]).studies
    return study, in_order(choose(study), Yuan2021.algorithms)


def lines(axis):
    return {line.get_label(): line for line in axis.get_lines()}


def test_a_panel_per_metric_shows_the_best_run_of_every_algorithm(records):
    records.add("feddualavg", 0.001, f1=(0, 0.5, 0.8, 0.9), density=(0, 0.6, 0.5, 0.5))
    records.add("feddualavg", 0.003, f1=(0, 0.1, 0.1, 0.1))
    records.add("fedmid", f1=(0, 0.4, 0.5, 0.6))
    records.add("optimum", f1=(0, 0.99), density=(0, 0.51))
    figure = curves.draw_panels(*study_of(records))
    f1, density = figure.axes
    assert [axis.get_title("left") for axis in figure.axes] == ["F1", "density"]
    assert {axis.get_xlabel() for axis in figure.axes} == {"communication rounds"}
    assert f1.get_xticks().tolist() == [0, 3]  # includes the last round
    assert lines(f1)["FedDualAvg"].get_xdata().tolist() == [0, 1, 2, 3]
    assert lines(f1)["FedDualAvg"].get_ydata().tolist() == [0, 0.5, 0.8, 0.9]
    assert lines(density)["FedDualAvg"].get_ydata().tolist() == [0, 0.6, 0.5, 0.5]
    assert lines(f1)["FedMiD"].get_ydata().tolist() == [0, 0.4, 0.5, 0.6]
    optimum = lines(f1)["optimum"]
    assert set(optimum.get_ydata()) == {0.99}
    assert optimum.get_linestyle() == "--"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["FedDualAvg (0.001, 1)†", "FedMiD (0.001, 1)", "optimum"]
    assert figure.legends[0].get_title().get_text() == (
        "algorithm (client, server learning rate); † on the edge of its grid"
    )
    assert figure.get_suptitle() == "The lasso_i"


def test_several_seeds_show_median_and_band(records):
    records.add(seed=0, f1=(0, 0.4))
    records.add(seed=1, f1=(0, 0.8))
    figure = curves.draw_panels(*study_of(records))
    axis = figure.axes[0]
    assert figure.get_suptitle() == "The lasso_i\nmedian and range over 2 seeds"
    assert lines(axis)["FedDualAvg"].get_ydata() == pytest.approx([0, 0.6])
    (band,) = axis.collections
    corners = band.get_paths()[0].vertices
    at_the_end = corners[corners[:, 0] == 1, 1]
    assert (at_the_end.min(), at_the_end.max()) == pytest.approx((0.4, 0.8))


def test_the_local_baseline_shows_its_quartiles(records):
    records.add("local", f1=(0, 0.5), f1_q25=(0, 0.3), f1_q75=(0, 0.6))
    axis = curves.draw_panels(*study_of(records)).axes[0]
    corners = axis.collections[0].get_paths()[0].vertices
    assert set(corners[corners[:, 0] == 1, 1]) == {0.3, 0.6}


def test_megabytes_as_x_axis(records):
    records.add("feddualavg")
    records.add("centralized", f1=(0, 0.9))
    axis = curves.draw_panels(*study_of(records), x="bytes").axes[0]
    assert {one.get_xlabel() for one in axis.figure.axes} == {"sent, both ways (MB)"}
    assert lines(axis)["FedDualAvg"].get_xdata().tolist() == [0, 2, 4, 6]
    assert set(lines(axis)["centralized"].get_ydata()) == {0.9}  # sends nothing: a horizontal line


def test_panels_in_a_row_have_no_title(records):
    records.add(f1=(0, 0.5, 0.8, 0.9), density=(0, 0.6, 0.5, 0.5))
    figure = curves.draw_panels(*study_of(records), in_row=True)
    assert figure.get_suptitle() == ""
    assert [axis.get_title("left") for axis in figure.axes] == ["F1", "density"]
    assert {axis.get_subplotspec().rowspan.start for axis in figure.axes} == {0}
    assert figure.get_figwidth() == 2 * curves.ROW_PANEL_WIDTH


def test_losses_are_drawn_on_a_logarithmic_scale(records):
    records.add(panels=("objective", "f1"))
    objective, f1 = curves.draw_panels(*study_of(records)).axes
    assert (objective.get_yscale(), f1.get_yscale()) == ("log", "linear")
    assert [[text.get_text() for text in axis.texts] for axis in (objective, f1)] == [["log scale"], []]


def test_legend_marks_algorithms_that_always_diverged(records):
    records.add("feddualavg")
    records.add("fedmid", diverged=2)
    figure = curves.draw_panels(*study_of(records))
    assert figure.legends[0].get_texts()[1].get_text() == "FedMiD all diverged"
    assert "FedMiD" not in lines(figure.axes[0])


def _grid(records, algo="feddualavg", **options):
    for client_lr, server_lr in itertools.product(CLIENT_RATES, SERVER_RATES):
        diverged = 2 if client_lr >= 0.1 else None
        score = 1 / (1 + abs(np.log(client_lr / 0.01)) + abs(np.log(server_lr)))
        f1 = (0, score, score, score)
        records.add(algo, client_lr, server_lr, f1=f1, diverged=diverged, **options)


def test_heat_map_has_a_cell_per_pair_with_diverged_ones_hatched(records):
    """Test with three adjacent client rates at which every run diverged; they share one row."""
    _grid(records)
    figure = sweeps.draw_heat_maps(*study_of(records))
    axis = figure.axes[0]
    (image,) = axis.images
    grid = np.ma.getdata(image.get_array())
    assert image.get_array().shape == (5, 7)
    hatched = {(p.get_y() + 0.5, p.get_x() + 0.5) for p in axis.patches if p.get_hatch()}
    assert hatched == {(4, column) for column in range(7)}
    assert image.get_array().mask[4:].all()
    assert grid[2, 4] == pytest.approx(1.0)
    frames = [p for p in axis.patches if isinstance(p, Rectangle) and not p.get_fill()]
    assert [(p.get_y() + 0.5, p.get_x() + 0.5) for p in frames] == [(2, 4)]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["0.001", "0.003", "0.01", "0.03", "0.1–1"]
    assert [label.get_text() for label in axis.get_xticklabels()] == [f"{rate:g}" for rate in SERVER_RATES]
    assert axis.get_title("left") == "FedDualAvg"  # its best pair is not on the edge


def test_choice_on_the_edge_of_its_grid_is_marked(records):
    records.add(client_lr=0.001, f1=(0, 1))
    records.add(client_lr=0.01, f1=(0, 0.5))
    figure = sweeps.draw_heat_maps(*study_of(records))
    assert figure.axes[0].get_title("left") == "FedDualAvg†"
    assert figure.get_suptitle().replace("\n", " ").endswith("† on the edge of its grid")


def test_tables_of_the_figures(records):
    records.add("fedmid", client_lr=0.001, f1=(0, 0.4), seed=0)
    records.add("fedmid", client_lr=0.001, f1=(0, 0.8), seed=1)
    records.add("fedmid", client_lr=0.1, diverged=1, seed=0)
    study, choices = study_of(records)
    table = curves.curves_table(study, choices)
    last = table[(table["metric"] == "f1") & (table["rounds"] == 1)].iloc[0]
    assert (last["algorithm"], last["client_lr"]) == ("fedmid", 0.001)
    assert (last["low"], last["median"], last["high"]) == pytest.approx((0.4, 0.6, 0.8))
    pairs = sweeps.rates_table(choices).set_index("client_lr")
    assert pairs["chosen"].to_dict() == {0.001: True, 0.1: False}
    assert pairs["diverged"].to_dict() == {0.001: 0, 0.1: 1}


@pytest.mark.parametrize("tried", [2, 7])
@pytest.mark.parametrize("algos", [1, 2, 4])
def test_axis_label_of_the_heat_maps_does_not_overlap(records, tried, algos):
    for algo in ("feddualavg", "fedmid", "fedmid_osp", "feddualavg_osp")[:algos]:
        for client_lr in np.geomspace(0.001, 1, tried):
            records.add(algo, float(client_lr), experiment="a_rather_long_name_of_an_experiment")
    figure = sweeps.draw_heat_maps(*study_of(records))
    figure.canvas.draw()
    (side,) = [text for text in figure.texts if text.get_text() == "client learning rate"]
    box = side.get_window_extent()
    assert box.y0 >= 0
    assert not [text for text in figure.texts if text is not side and text.get_window_extent().overlaps(box)]


def test_single_pair_has_no_heat_map(records):
    records.add()
    assert not sweeps.has_heat_maps(study_of(records)[1])


def test_28_of_the_49_pairs_are_in_the_range_of_the_robustness_figure(records):
    _grid(records)
    _, choices = study_of(records)
    assert len(robustness.pairs_in_range(choices["feddualavg"])) == 28


def test_the_robustness_figure_shows_quality_against_density(records):
    rounds = [0, 10, 30, 100, 300]
    options = {"rounds": rounds, "f1": (0.0,) * 5, "density": (0, 0.9, 0.7, 0.5, 0.3)}
    records.add(client_lr=0.01, server_lr=1, validation_accuracy=(0.5, 0.6, 0.7, 0.8, 0.9), **options)
    records.add(client_lr=0.1, server_lr=1, validation_accuracy=(0.5, 0.6, 0.7, 0.8, 0.9), diverged=301, **options)
    records.add(client_lr=1, server_lr=10, validation_accuracy=(0.5,) * 5, **options)  # outside the range
    study, choices = study_of(records)
    found = robustness.robustness_points(study, choices)
    assert robustness.reason_not_drawn(found).endswith("at most 2 of any algorithm have not diverged.")
    figure = robustness.draw_robustness(study, found)
    assert [axis.get_title() for axis in figure.axes] == ["round 10", "round 30", "round 100", "round 300"]
    dots = [axis.collections[0].get_offsets().tolist() for axis in figure.axes]
    assert dots[0] == [[0.9, 0.6]] * 2
    assert dots[3] == [[0.3, 0.9]] * 2
    assert figure.get_supylabel() == "validation accuracy"


def test_the_robustness_figure_has_a_row_for_every_algorithm(records):
    for algo in ("feddualavg", "fedmid"):
        for server_lr in (0.3, 0.5, 1, 2, 3):
            records.add(algo, 0.1, server_lr, rounds=[0, 300], f1=(0, 0.5), density=(0, 0.4))
    study, choices = study_of(records)
    found = robustness.robustness_points(study, choices)
    assert robustness.reason_not_drawn(found) is None
    axes = robustness.draw_robustness(study, found).axes
    assert [len(axis.collections[0].get_offsets()) for axis in axes] == [5, 5]
    assert [axis.texts[-1].get_text() for axis in axes] == ["FedDualAvg", "FedMiD"]


def test_diverged_runs_are_counted_in_the_robustness_figure(records):
    accuracy = {"validation_accuracy": (0.5, 0.6), "f1": (0.0, 0.0)}
    records.add(client_lr=0.01, rounds=[0, 300], density=(0, 0.9), **accuracy)
    records.add(client_lr=0.1, rounds=[0, 20], density=(0, 0.9), diverged=21, **accuracy)
    records.add(client_lr=0.03, rounds=[0, 300], density=(0, 1), train_loss=(1, 1e9), **accuracy)
    study, choices = study_of(records)
    (axis,) = robustness.draw_robustness(study, robustness.robustness_points(study, choices)).axes
    assert axis.get_title() == "round 300"  # the only one evaluated
    assert axis.texts[0].get_text() == "2 diverged"
    assert len(axis.collections[0].get_offsets()) == 1


def test_figures_are_written_as_png_and_pdf_with_the_same_bytes_each_time(records, tmp_path):
    records.add()
    study, choices = study_of(records)
    first = [path.read_bytes() for path in drawing.save(curves.draw_panels(study, choices), tmp_path / "a")]
    second = [path.read_bytes() for path in drawing.save(curves.draw_panels(study, choices), tmp_path / "b")]
    assert first[0].startswith(b"\x89PNG")
    assert first[1].startswith(b"%PDF")
    assert first == second
    assert {path.name for path in tmp_path.glob("?.*")} == {"a.png", "a.pdf", "b.png", "b.pdf"}


def test_algorithm_styles_are_distinct():
    own = {name: kind for name, kind in all_algorithms().items() if kind.__module__.startswith("fco_cli.")}
    styles = {name: vars(kind)["style"] for name, kind in own.items() if "style" in vars(kind)}
    drawn = [style for algo, style in styles.items() if algo != "optimum"]
    assert len({(to_hex(style.color), style.marker) for style in drawn}) == len(drawn)
    of_the_paper = [styles[algo] for algo in Yuan2021.algorithms]
    assert len({to_hex(style.color) for style in of_the_paper}) == 6
    assert len({style.dashes for style in of_the_paper}) == 6  # distinguishable in grayscale
    assert {name for name, kind in own.items() if kind.federated} <= set(styles)


def test_algorithms_without_a_style_have_their_names_and_colors_of_their_own():
    names = [f"mine_{i}" for i in range(len(SPARE_COLORS) // 2)]
    styles = [algorithm_style(name) for name in names]
    assert [style.label for style in styles] == names
    assert len({style.color for style in styles}) == len(names)
    taken = {vars(kind)["style"].color for kind in all_algorithms().values() if "style" in vars(kind)}
    assert not {style.color for style in styles} & taken
    assert algorithm_style("mine_0") is styles[0]


def test_algorithms_are_ordered_by_family_and_label_with_baselines_last():
    names = ["optimum", "mine", "zhj", "fedmid", "feddualavg", "local", "feddualavg_cv"]
    assert sorted(names, key=algorithm_order) == [
        "feddualavg_cv", "zhj", "feddualavg", "fedmid", "mine", "local", "optimum",
    ]  # fmt: skip


def test_pdfs_have_column_width_and_embedded_fonts(records, tmp_path):
    records.add()
    _, pdf = drawing.save(curves.draw_panels(*study_of(records)), tmp_path / "figure")
    content = pdf.read_bytes()
    assert float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", content)[1]) == pytest.approx(3.3 * 72, abs=1)
    assert b"/FontFile2" in content
    assert b"/Subtype /Type3" not in content


def test_long_titles_are_wrapped_and_never_clipped(records):
    records.add(task={"name": "x" * 30})
    study, choices = study_of(records)
    study.title = "A title of many words " * 10
    figure = curves.draw_panels(study, choices)
    figure.draw_without_rendering()
    assert figure.get_suptitle().count("\n") >= 3
    assert figure._suptitle.get_window_extent().x1 <= figure.bbox.x1


NUMBERS = {0: "0", 1: "1", 0.9876: ".99", 0.998: ".998", 0.012: ".012", 12.3: "12", 123.4: "123", 1e7: "1e+07"}


@pytest.mark.parametrize("value", NUMBERS)
def test_numbers_fit_their_cells(value):
    assert sweeps.format_short(value) == NUMBERS[value]


def test_values_too_large_to_draw_leave_a_gap(records, tmp_path):
    records.add(client_lr=0.001, f1=(0, 1e308, 5, 5))
    records.add(client_lr=0.003, f1=(0, -1e308, 1e308, 1e308))
    records.add(client_lr=0.01, f1=(0, 5e-324, 5e-324, 5e-324))
    study, choices = study_of(records)
    for figure in (curves.draw_panels(study, choices), sweeps.draw_heat_maps(study, choices)):
        drawing.save(figure, tmp_path / "figure")
    assert sweeps.draw_heat_maps(study, choices).axes[0].images[0].get_array().mask.tolist() == [
        [False],
        [True],
        [False],
    ]


def test_too_many_learning_rates_have_no_heat_map(records):
    for i in range(sweeps.MAX_RATES + 1):
        records.add(client_lr=0.001 * (i + 1))
    assert not sweeps.has_heat_maps(study_of(records)[1])


def test_the_heat_map_shows_the_best_option_of_each_pair(records):
    for momentum, score in ((0.5, 0.3), (0.9, 0.8), (0.95, 0.1)):
        records.add(client_lr=0.001, options={"momentum": momentum}, f1=(0, score))
        records.add(client_lr=0.01, options={"momentum": momentum}, f1=(0, score / 2))
    (axis, _) = sweeps.draw_heat_maps(*study_of(records)).axes
    assert axis.images[0].get_array().tolist() == [[0.8], [0.4]]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (-2.1, 2.1, ["0.2", "0.5", "1", "2", "5"]),
        (-0.03, 0.06, ["0.98", "1", "1.02", "1.05"]),
        (0, 2e-4, ["1", "1.00005", "1.0001"]),
        (-1, 300, ["1", "1e+19", "1e+38"]),
    ],
)
def test_ticks_of_ratios(low, high, labels):
    _, ((axis,),) = drawing.new_figure(1, 1, 1)
    drawing.ratio_ticks(axis, low, high)
    shown = [label.get_text() for label in axis.get_xticklabels()]
    assert shown[: len(labels)] == labels
    ticks = axis.get_xticks()
    np.testing.assert_allclose(np.exp(ticks), np.array(shown, float), rtol=1e-6)
    assert np.diff(ticks).min() >= (high - low) / drawing.MAX_RATIO_TICKS * (1 - 1e-9)


def test_lines_that_are_cut_off_have_arrows():
    _figure, ((axis,),) = drawing.new_figure(1, 1, 1)
    drawing.mark_cut(axis, 0.5, np.empty(0), "<")
    assert not axis.get_lines()
    drawing.mark_cut(axis, 0.5, np.array([1.0, 2]), "<", color="red")
    (arrows,) = axis.get_lines()
    assert (arrows.get_marker(), arrows.get_xdata().tolist()) == ("<", [0.5, 0.5])
