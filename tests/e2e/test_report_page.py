"""The report's page in a real browser: it sorts, filters, draws, plays, fetches nothing and complains of nothing."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from fco_cli.reporting.records.studies import collect
from fco_cli.reporting.report import make_report
from fco_cli.studies import all_studies

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1200,900",
)  # fmt: skip

browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        not (browser and driver and importlib.util.find_spec("selenium")),
        reason="needs selenium and Debian's chromium and chromium-driver",
    ),
]


def _reporting(name):
    """A module of the reporting tests, which write records."""
    place = Path(__file__).parents[1] / "reporting" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"reporting_{name}", place)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("report")
    records = _reporting("conftest").Records(folder / "outputs")
    path = {"round": [0, 1, 3], "weights": np.array([[0, 0, 0, 0], [0.5, 0.2, 0.1, 0], [1, 1, 0, 0]])}
    for client_lr in (0.001, 0.01, 0.1):
        one = records.add("feddualavg", client_lr, f1=(0, 0.5, 0.9, 0.8 + client_lr), task={"ones": 2})
        np.savez(one / "path.npz", **path)
        diverged = 3 if client_lr == 0.1 else None
        f1 = (0, 0.3, 0.4, 0.5 - client_lr)
        other = records.add("fedmid", client_lr, f1=f1, diverged=diverged, task={"ones": 2})
        np.savez(other / "path.npz", **path)
    records.add("optimum", f1=(0, 1), objective=(9, 1), task={"ones": 2})
    # a second study, for the menu, with a number that is longer than a phone is wide
    records.add("fedavg", experiment="curse", paper="In the place of figures 4, 5 and 12", task={"samples": 3})
    for algo, end in (("zhj", 1), ("fedmid", 2), ("optimum", 1)):  # a third, the leaderboard's
        records.add(algo, experiment="successors", paper="", objective=(9, 3, 2, end))
    (records.add("fedmid_osp") / "metrics.csv").write_text("<script>alert(1)</script>")
    return make_report(collect([records.root]), folder / "page", all_studies()).page.as_uri()


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
    wait(chrome, "return document.querySelector('#run-table tbody tr.run') !== null")
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
    wait(page, "return document.querySelector('#run-table tbody tr.run') !== null")
    find(page, "#run-table tbody tr.run")[0].click()
    find(page, ".player button")[0].click()
    assert [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []
    assert len([address for address in asked if address.startswith("file:")]) <= 1  # the page itself
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_the_table_sorts_numbers_as_numbers(page):
    assert len(column(page, 1)) == 8
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
    assert find(page, "#count")[0].text == "3 of 8 runs"
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
    images = find(page, "figure img")
    assert [image.get_attribute("alt") for image in images][:3] == [
        "The lasso_i: curves", "The lasso_i: learning rates", "The curse: curves",
    ]  # fmt: skip
    assert len(find(page, "#leaderboard figure img")) == len(images) - 3 == 5
    assert all(image.get_attribute("loading") == "lazy" for image in images)
    page.execute_script("for (const image of document.images) image.loading = 'eager'")
    wait(page, "return [...document.images].every((image) => image.naturalWidth > 500)")
    assert len(find(page, "#summary img")) == 2  # the same pictures again, at no cost
    caption = find(page, "figcaption")[0]
    assert caption.text.startswith("Figure 3. Metrics against rounds")
    links = [link.get_attribute("href").rsplit("/page/")[-1] for link in caption.find_elements("css selector", "a")]
    assert links == ["figures/lasso_i.pdf", "figures/lasso_i.csv", "figures/lasso_i.png"]
    assert find(page, "#lasso_i .command code")[0].text == "fco-run -m experiment=lasso_i"
    (left_out,) = find(page, "#left-out li")
    assert "fedmid_osp" in left_out.text


def wait(page, condition):
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, 10).until(lambda driver: driver.execute_script(condition))


def shown_claims(page):
    return [row for row in find(page, "#claim-table tbody tr") if row.is_displayed()]


def test_claims_are_filtered_and_lead_to_their_figures(page):
    from selenium.webdriver.support.ui import Select

    everything = len(find(page, "#claim-table tbody tr"))
    Select(find(page, "#claim-verdict")[0]).select_by_value("")
    assert find(page, "#claim-count")[0].text == f"{everything} of {everything} tests"
    Select(find(page, "#claim-experiment")[0]).select_by_visible_text("lasso_i")
    rows = shown_claims(page)
    assert 0 < len(rows) < everything
    assert {row.find_elements("css selector", "td")[1].text for row in rows} == {"lasso_i"}
    rows[0].find_elements("css selector", "td a")[0].click()
    assert page.execute_script("return location.hash") == "#lasso_i"
    find(page, "#claim-text")[0].send_keys("no such words")
    assert shown_claims(page) == []
    find(page, ".tile.not-run")[0].click()
    assert {row.get_attribute("data-verdict") for row in shown_claims(page)} == {"not run"}


def test_the_menu_is_in_the_papers_order_and_stays_in_sight(page):
    links = [link.text for link in find(page, "#menu a")]
    studies = ["Figure 3 The lasso_i", "In the place of figures 4, 5 and 12 The curse"]
    assert links == ["Summary", *studies, "Leaderboard", "Claims of the paper", "All runs", "Left out"]
    find(page, "#menu a[href='#curse']")[0].click()
    wait(page, "return document.querySelector('#menu a[aria-current]')?.hash === '#curse'")
    assert 0 <= page.execute_script("return document.querySelector('#menu').getBoundingClientRect().top") < 100


def test_the_player_steps_through_the_rounds(page):
    wait(page, "return document.querySelector('.player canvas') !== null")
    assert [title.text for title in find(page, ".player h4")] == ["FedDualAvg (0.1, 1)", "FedMiD (0.001, 1)"]
    assert find(page, ".player output")[0].text == "round 3"  # it opens with the end
    picture = "return document.querySelector('.player canvas').toDataURL()"
    end = page.execute_script(picture)
    slider = find(page, ".player input")[0]
    slider.send_keys("\ue012")  # arrow to the left
    assert find(page, ".player output")[0].text == "round 1"
    assert find(page, ".player p")[0].text == "F1 0.5, density 0.5"
    assert page.execute_script(picture) != end
    slider.send_keys("\ue012")
    find(page, ".player button")[0].click()
    wait(page, "return document.querySelector('.player output').textContent === 'round 3'")
    wait(page, "return document.querySelector('.player button').textContent === '▶ play'")
    assert page.execute_script(picture) == end


def _scrolls(image):
    return "broad" in image.find_element("xpath", "..").get_attribute("class")


def test_it_fits_a_phone(page):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        page.refresh()
        wait(page, "return document.querySelector('#run-table tbody tr.run') !== null")
        find(page, "#run-table tbody tr.run")[0].click()
        assert page.execute_script("return innerWidth") == 390
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
        assert not find(page, "#menu a")[0].is_displayed()  # folded
        find(page, "#menu summary")[0].click()
        assert find(page, "#menu a")[0].is_displayed()
        assert all(image.size["width"] <= 390 for image in find(page, "img") if not _scrolls(image))
        page.execute_script("document.querySelector('details.problem').open = true")
        assert [image for image in find(page, "details.problem img") if _scrolls(image) and image.size["width"] > 640]
        assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_is_dark_where_the_reader_wants_it_dark(page):
    def background():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    assert background() == "rgb(255, 255, 255)"
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    try:
        assert background() == "rgb(21, 24, 28)"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_result_of_a_path_is_on_the_first_screen_and_nothing_complains(chrome, tmp_path):
    """A page without claims and without runs."""
    _reporting("test_paths").write_path(tmp_path / "records" / "one")
    page = make_report(collect([tmp_path / "records"]), tmp_path / "page", all_studies()).page
    chrome.set_window_size(1200, 900)
    chrome.get_log("browser")
    chrome.get(page.as_uri())
    table, figure = find(chrome, "#summary table")[0], find(chrome, "#path_heart figure img")[0]
    assert 0 < table.rect["y"] < figure.rect["y"] < 500
    assert find(chrome, "#claims, #runs") == []
    assert [entry for entry in chrome.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
