"""docs/_static/curse.html in a real browser: its algorithms agree with the engine, and its controls work."""

from __future__ import annotations

import csv
import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "_static" / "curse.html"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
SETTINGS = {"heterogeneity": 0.3, "clientRate": 0.01, "serverRate": 0.8, "steps": 20, "strength": 0.4}
SIMULATE = """
const [name, settings, rounds] = arguments;
const clients = drawClients(settings.heterogeneity);
const frames = simulate(name, clients, settings, rounds), last = frames[rounds];
return {
  clients: clients.map((one) => [one.x.map((row) => Array.from(row)), Array.from(one.y)]),
  model: Array.from(last.model), models: last.models.map((one) => Array.from(one)), objective: last.objective,
};
"""

browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        not (browser and driver and importlib.util.find_spec("selenium")),
        reason="needs selenium and Debian's chromium and chromium-driver",
    ),
]


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


@pytest.fixture
def page(chrome):
    chrome.set_window_size(1440, 1000)
    chrome.get(PAGE.as_uri())
    return chrome


def set_value(page, name, value):
    page.execute_script(
        "const input = document.getElementById(arguments[0]); input.value = arguments[1];"
        "input.dispatchEvent(new Event('input'));", name, value,
    )  # fmt: skip


def status(page):
    return page.find_element("id", "status").text


def run_engine(here, folder, clients, *overrides):
    """Run the engine on the rows of the page; return its model with the bias and its last objective."""
    table = folder / "rows.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{j}" for j in range(40)), "label", "client"])
        for m, (x, y) in enumerate(clients):
            writer.writerows([*map(repr, row), repr(label), f"c{m}"] for row, label in zip(x, y, strict=True))
    here(
        "task=custom", f"task.path={table}", "task.client=client", "task.label=label", "task.standardize=false",
        "task.loss=squared", "task.holdout=none", "regularizer=l1", "regularizer.strength=0.4",
        f"output_dir={folder / 'outputs'}", *overrides,
    )  # fmt: skip
    (path,) = (folder / "outputs").rglob("model.npz")
    model = np.load(path)
    with (path.parent / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    return np.append(model["weights"].ravel(), model["bias"]), float(last["objective"])


@pytest.mark.parametrize(
    ("name", "algo", "steps"),
    [
        ("fedmid", "fedmid", 20),
        ("feddualavg", "feddualavg", 20),
        ("zhj", "zhj", 20),
        ("proximal_gradient", "fedmid_osp", 1),  # with one local step and psi at the server only, they are the same
    ],
)
def test_the_page_computes_what_the_engine_computes(page, name, algo, steps, here, tmp_path):
    rounds = 5 if steps > 1 else 40
    found = page.execute_script(SIMULATE, name, SETTINGS, rounds)
    expected, objective = run_engine(
        here, tmp_path, found["clients"], f"algo={algo}", "hparams.client_lr=0.01", "hparams.server_lr=0.8",
        f"hparams.rounds={rounds}", "hparams.batch_size=60", f"hparams.local_epochs={steps}",
        "hparams.clients_per_round=all",
    )  # fmt: skip
    assert np.abs(expected).max() > 0.3
    np.testing.assert_allclose(found["model"], expected, rtol=0, atol=1e-10)
    assert found["objective"] == pytest.approx(objective, rel=1e-10)


def test_the_gap_is_to_the_optimum_of_the_engine(page, here, tmp_path):
    values = "return {gap: last.gap, optimum: Array.from(optimum(clients, settings.strength)),"
    found = page.execute_script(SIMULATE.replace("return {", values), "fedmid", SETTINGS, 5)
    expected, least = run_engine(here, tmp_path, found["clients"], "algo=optimum")
    np.testing.assert_allclose(found["optimum"], expected, rtol=0, atol=1e-6)
    assert found["gap"] == pytest.approx(found["objective"] - least, rel=1e-7)


def test_control_variates_remove_the_bias_and_psi_at_both_places_adds_one(page):
    settings = SETTINGS | {"heterogeneity": 0.6, "serverRate": 1, "steps": 50}
    script = SIMULATE.replace("return {", "return {gap: last.gap,")
    gaps = {name: page.execute_script(script, name, settings, 60)["gap"] for name in ("fedmid", "feddualavg", "zhj")}
    assert gaps["zhj"] < 1e-10 < 1e-3 < gaps["feddualavg"] < gaps["fedmid"] / 10
    settings |= {"steps": 1, "clientRate": 0.1}
    assert page.execute_script(script, "proximal_gradient", settings, 60)["gap"] < 1e-6
    assert page.execute_script(script, "fedmid", settings, 60)["gap"] > 0.1


def test_averages_of_sparse_models_are_dense_and_dual_averages_are_not(page):
    counts = {}
    for name in ("fedmid", "feddualavg"):
        found = page.execute_script(
            SIMULATE.replace("return {", "return {average: nonzeros(last.average),"), name, SETTINGS | {"steps": 50}, 12
        )
        clients = [np.count_nonzero(model[:-1]) for model in found["models"]]
        counts[name] = (max(clients), found["average"])
    assert counts["fedmid"][1] > counts["fedmid"][0] + 8
    assert counts["feddualavg"][1] <= counts["feddualavg"][0]


def test_controls_work_with_the_keyboard_alone(page):
    from selenium.webdriver.common.keys import Keys

    assert status(page).startswith("Round 12. FedMiD: clients have")
    page.find_element("id", "step").send_keys(Keys.ENTER)
    assert status(page).startswith("Round 13.")
    page.find_element("id", "round").send_keys(Keys.ARROW_RIGHT)
    assert status(page).startswith("Round 14.")
    page.find_element("id", "reset").send_keys(Keys.SPACE)
    assert "Round 0. FedMiD: clients have 0 non-zero weights" in status(page)
    page.find_element("id", "play").send_keys(Keys.SPACE)
    assert page.find_element("id", "play").text == "Pause"
    page.find_element("id", "play").send_keys(Keys.SPACE)
    assert page.find_element("id", "play").text == "Play"


def test_settings_change_the_pictures_and_divergence_is_stated(page):
    assert len(page.find_elements("css selector", "#panels section")) == 2
    set_value(page, "algorithm", "feddualavg")
    (heading,) = page.find_elements("css selector", "#panels h2")
    assert heading.text == "FedDualAvg"
    set_value(page, "strength", "0")
    assert "clients have 40 non-zero weights, their average has 40" in status(page)
    set_value(page, "clientRate", "-0.25")
    set_value(page, "round", "60")
    assert "FedDualAvg diverges: lower a learning rate" in status(page)


def test_every_choice_of_algorithms_has_its_panels_curves_and_legend(page):
    labels = {"fedmid": "FedMiD", "feddualavg": "FedDualAvg", "zhj": "ZHJ", "proximal_gradient": "Proximal gradient"}
    options = page.find_elements("css selector", "#algorithm option")
    choices = [option.get_attribute("value") for option in options]
    assert {name for choice in choices for name in choice.split(",")} == set(labels)
    for choice in choices:
        set_value(page, "algorithm", choice)
        names = choice.split(",")
        expected = [labels[name] for name in names]
        assert [one.text for one in page.find_elements("css selector", "#panels h2")] == expected
        assert [one.text for one in page.find_elements("css selector", "#legend li")][1:] == expected
        assert all(f"{label}: clients have" in status(page) for label in expected)
        assert status(page).count("gap to the optimum") == len(names)
        for name in names:
            assert page.find_elements("css selector", f"#gap path[stroke='var(--{name})']")
            assert page.execute_script(
                "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0])", f"--{name}"
            )
        assert page.find_element("id", "steps").is_enabled() == (choice != "proximal_gradient")


def test_gaps_of_different_numbers_of_steps_can_be_told_apart(page):
    page.get("about:blank")
    page.get(PAGE.as_uri() + "#algorithm=feddualavg&heterogeneity=0.6&clientRate=0.01&steps=10&round=60")
    printed = set()
    for steps in (10, 50, 100):
        set_value(page, "steps", steps)
        printed.add(status(page).rpartition("optimum ")[2])
    assert len(printed) == 3


def test_the_address_sets_the_inputs(page):
    page.get("about:blank")
    page.get(PAGE.as_uri() + "#algorithm=fedmid&clientRate=0.01&steps=1&round=3&play=now")
    (heading,) = page.find_elements("css selector", "#panels h2")
    assert heading.text == "FedMiD"
    assert status(page).startswith("Round 3. FedMiD")
    assert page.find_element("id", "steps").get_attribute("value") == "1"
    assert page.find_element("id", "play").text == "Play"


def test_an_embedded_page_has_no_introduction_and_fits_the_frame_of_the_tutorial(page, tmp_path):
    text = (PAGE.parents[1] / "tutorials" / "paper" / "exact.md").read_text(encoding="utf-8")
    (frame,) = re.findall(r"<iframe.*</iframe>", text)
    outer = tmp_path / "outer.html"
    outer.write_text(f"<body style='width: 880px'>{frame.replace('../../_static/curse.html', PAGE.as_uri())}</body>")
    assert page.find_element("tag name", "h1").is_displayed()
    page.get(outer.as_uri())
    page.switch_to.frame(0)
    assert not any(one.is_displayed() for one in page.find_elements("class name", "introduction"))
    assert page.find_element("id", "status").is_displayed()
    hidden = page.execute_script(
        "return document.getElementById('legend').getBoundingClientRect().bottom - window.innerHeight"
    )
    assert hidden <= 0


@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_fits_the_window_and_names_every_control(page, width):
    page.set_window_size(width, 900)
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    for control in page.find_elements("css selector", "input, select, button"):
        assert control.accessible_name
    for picture in page.find_elements("css selector", "svg[role=img]"):
        assert picture.get_attribute("aria-label")
    assert [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("problem", ["Round 0. Proximal gradient: clients have 0 non-zero"]),
        ("proximal_gradient", ["Round 1. Proximal gradient: clients have 40 non-zero"]),
        ("local_steps", ["Round 4. FedMiD: ", "gap to the optimum 1.2."]),
        (
            "curse",
            ["have 10 to 16 non-zero weights, their average has 33, the server's model 8; gap to the optimum 1.1."],
        ),
        ("dual_averaging", ["Round 12. FedMiD: ", "FedDualAvg: clients have 8 non-zero weights, their average has 8"]),
        ("learning_rates", ["Round 20. FedDualAvg diverges"]),
        ("exact", ["Round 40. FedDualAvg: ", "gap to the optimum 1.4e-2. ZHJ: ", "gap to the optimum below 1e-12."]),
    ],
)
def test_the_pictures_of_the_tutorial(page, name, texts):
    text = (PAGE.parents[1] / "tutorials" / "paper" / f"{name}.md").read_text(encoding="utf-8")
    (address,) = re.findall(r'<iframe src="../../_static/curse.html(#[^"]*)"', text)
    page.get("about:blank")
    page.get(PAGE.as_uri() + address)
    assert f"algorithm={page.find_element('id', 'algorithm').get_attribute('value')}&" in address
    assert all(one in status(page) for one in texts), status(page)


@pytest.mark.parametrize(
    ("name", "algorithm", "settings", "round_", "gap"),
    [
        ("proximal_gradient", "proximal_gradient", {"clientRate": 0.1}, 60, "2.4e-9"),
        ("local_steps", "fedmid", {"heterogeneity": 0, "steps": 1}, 60, "1.1"),
        ("learning_rates", "feddualavg", {"clientRate": 10**-0.75}, 60, "1.5e-2"),
        ("learning_rates", "feddualavg", {"clientRate": 10**-1.5}, 60, "3.6e-3"),
        ("learning_rates", "feddualavg", {}, 60, "5.1e-4"),
        ("learning_rates", "feddualavg", {"clientRate": 0.001}, 60, "4.6e-2"),
        ("exact", "feddualavg", {"heterogeneity": 0.6, "steps": 10}, 40, "1.1e-3"),
        ("exact", "feddualavg", {"heterogeneity": 0.6, "steps": 100}, 40, "2.8e-2"),
    ],
)
def test_the_gaps_that_the_tutorial_states(page, name, algorithm, settings, round_, gap):
    script = SIMULATE.replace("return {", "return {gap: formatGap(last.gap),")
    found = page.execute_script(script, algorithm, SETTINGS | {"serverRate": 1} | settings, round_)
    assert found["gap"] == gap
    text = (PAGE.parents[1] / "tutorials" / "paper" / f"{name}.md").read_text(encoding="utf-8")
    assert f" {gap}" in " ".join(text.split())
