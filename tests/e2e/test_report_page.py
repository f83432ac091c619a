"""The report's page in a real browser: it sorts, filters, draws, fetches nothing and complains of nothing."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from fco_cli.reporting.report import make_report
from fco_cli.reporting.studies import collect

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1200,900",
)  # fmt: skip

browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (browser and driver and importlib.util.find_spec("selenium")),
    reason="needs selenium and Debian's chromium and chromium-driver",
)


def _records():
    """The record writer of the reporting tests."""
    place = Path(__file__).parents[1] / "reporting" / "conftest.py"
    spec = importlib.util.spec_from_file_location("reporting_records", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Records


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("report")
    records = _records()(folder / "outputs")
    for client_lr in (0.001, 0.01, 0.1):
        records.add("feddualavg", client_lr, f1=(0, 0.5, 0.9, 0.8 + client_lr))
        records.add("fedmid", client_lr, f1=(0, 0.3, 0.4, 0.5 - client_lr), diverged=3 if client_lr == 0.1 else None)
    records.add("optimum", f1=(0, 1), objective=(9, 1))
    (records.add("fedmid_osp") / "metrics.csv").write_text("<script>alert(1)</script>")
    return make_report(collect([records.root]), folder / "page").page.as_uri()


@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


@pytest.fixture
def page(chrome, url):
    chrome.get(url)
    return chrome


def find(page, selector):
    return page.find_elements("css selector", selector)


def column(page, index):
    return [cell.text for cell in find(page, f"#run-table tbody tr.run td:nth-child({index})")]


def heading(page, title):
    (button,) = [button for button in find(page, "#run-table th button") if button.text.strip(" ▲▼") == title]
    return button


def test_nothing_is_fetched_and_nothing_complains(page):
    page.get_log("performance")  # what the browser did before
    page.refresh()
    find(page, "#run-table tbody tr.run")[0].click()
    assert [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
    assert len([address for address in asked if address.startswith("file:")]) <= 1  # the page itself
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_the_table_sorts_numbers_as_numbers(page):
    assert len(column(page, 1)) == 7
    heading(page, "score").click()
    scores = [float(text) for text in column(page, 8) if text != "–"]
    assert scores == sorted(scores)
    assert column(page, 8)[-1] == "–"  # the run that diverged has no score and comes last
    heading(page, "score").click()
    scores = [float(text) for text in column(page, 8) if text != "–"]
    assert scores == sorted(scores, reverse=True)
    assert find(page, "th[data-key=score]")[0].get_attribute("aria-sort") == "descending"


def test_the_gap_to_the_optimum_is_in_the_table(page):
    gaps = dict(zip(column(page, 2), column(page, 9), strict=True))
    assert gaps["optimum"] == "0"
    assert float(gaps["FedDualAvg"]) == 2  # the objectives end at 3 and 1


def test_filters_filter(page):
    from selenium.webdriver.support.ui import Select

    Select(find(page, "#filter-algo")[0]).select_by_visible_text("FedMiD")
    assert set(column(page, 2)) == {"FedMiD"}
    assert find(page, "#count")[0].text == "3 of 7 runs"
    Select(find(page, "#filter-status")[0]).select_by_visible_text("diverged")
    assert column(page, 3) == ["0.1"]
    Select(find(page, "#filter-algo")[0]).select_by_visible_text("all")
    Select(find(page, "#filter-status")[0]).select_by_visible_text("all")
    find(page, "#filter-text")[0].send_keys("optimum")
    assert column(page, 2) == ["optimum"]


def test_a_click_shows_a_runs_curves_and_another_hides_them(page):
    row = find(page, "#run-table tbody tr.run")[0]
    row.click()
    assert [text.text for text in find(page, "tr.detail svg text:first-child")] == ["F1", "density"]
    points = find(page, "tr.detail polyline")[0].get_attribute("points").split()
    assert len(points) == 4
    heights = [float(point.split(",")[1]) for point in points]
    assert heights[0] > heights[1] > heights[2]  # 0, 0.5, 0.9: upwards on the page
    row.click()
    assert find(page, "tr.detail") == []


def test_figures_ledger_and_left_out_records_are_on_the_page(page):
    images = find(page, "img")
    assert len(images) == 3  # curves, learning rates, robustness
    assert all(page.execute_script("return arguments[0].naturalWidth", image) > 1000 for image in images)
    verdicts = {cell.text for cell in find(page, "#claims td.verdict")}
    assert any("reproduced" in verdict for verdict in verdicts)
    assert any("not run" in verdict for verdict in verdicts)
    (left_out,) = find(page, "#left-out li")
    assert "fedmid_osp" in left_out.text


def test_it_fits_a_phone(page):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 375, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        page.refresh()
        find(page, "#run-table tbody tr.run")[0].click()
        assert page.execute_script("return innerWidth") == 375
        assert page.execute_script("return document.documentElement.scrollWidth") <= 375
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
