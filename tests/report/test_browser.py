"""The page in a real browser: headless Chromium, driven through chromedriver."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import run, study
from small import experiment, write_data

from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.report import write
from fafed.report.quantities import AXES
from fafed.report.watch import serving

webdriver: Any = pytest.importorskip("selenium.webdriver", reason="needs pip install selenium")
waiting: Any = pytest.importorskip("selenium.webdriver.support.ui")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not (CHROMIUM and DRIVER):
    pytest.skip("needs the programs chromium and chromedriver", allow_module_level=True)

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1280,900",
]
EVIL = "<script>window.hacked = 1</script>"
TITLES = {"rounds": "Rounds", "bytes": "Bytes sent and received, all clients"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [run(name, seed, rounds=30) for name in ("fafed", "fedavg", EVIL) for seed in (0, 1)]
    return write(runs, tmp_path_factory.mktemp("report"), studies=[study(12)])


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ["SE_AVOID_STATS"] = "true"
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Any, report: Path) -> Iterator[Any]:
    """The freshly loaded page, in light colours and on a wide screen."""
    chromium.get_log("browser")
    chromium.get_log("performance")
    chromium.get(report.as_uri())
    yield chromium
    assert chromium.get_log("browser") == []  # no errors, no warnings, no blocked requests
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def prefer_dark(browser: Any) -> None:
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    settle(browser)


def settle(browser: Any) -> None:
    """Two frames: observers have been called and what they drew is on the screen."""
    browser.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));"
    )


def choose(browser: Any, value: str) -> None:
    browser.find_element("css selector", f".switch input[value={value}]").click()


def layouts(browser: Any, path: str) -> list[Any]:
    script = f"return [...document.querySelectorAll('.js-plotly-plot')].map((b) => b.layout.{path})"
    return list(browser.execute_script(script))


def shown_titles(browser: Any) -> list[str]:
    """The x titles of the line charts as text on the screen, not as settings."""
    found = browser.find_elements("css selector", "[data-kind=chart] .xtitle")
    return [element.text for element in found]


def test_it_draws_everything_and_asks_the_network_nothing(browser: Any, report: Path) -> None:
    assert len(layouts(browser, "width")) == 5  # three line charts, the heat map, the study
    assert browser.execute_script("return performance.getEntriesByType('resource')") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert report.as_uri() in asked
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} == {report.as_uri()}


def test_plotly_accepts_every_chart(browser: Any) -> None:
    problems = browser.execute_script(
        "return [...document.querySelectorAll('.js-plotly-plot')].flatMap("
        "  (b) => Plotly.validate(b.data, b.layout) || [])"
    )
    # "unused" only says that an option does not matter in this chart.
    assert [p for p in problems if p["code"] != "unused"] == []


def test_names_are_text(browser: Any) -> None:
    assert browser.execute_script("return window.hacked") is None
    assert EVIL in browser.find_element("css selector", ".legend").text


def test_the_switch_changes_the_axis_of_all_charts(browser: Any) -> None:
    ends = "return [...document.querySelectorAll('[data-kind=chart].js-plotly-plot')].map((b) =>"
    assert shown_titles(browser) == [TITLES["rounds"]] * 3
    before = browser.execute_script(f"{ends} b.data.at(-1).x.at(-1))")
    choose(browser, "bytes")
    assert shown_titles(browser) == [TITLES["bytes"]] * 3
    after = browser.execute_script(f"{ends} b.data.at(-1).x.at(-1))")
    assert before == [30] * 3
    assert after == [67_500_000] * 3
    ticks = browser.find_elements("css selector", "[data-kind=chart] .xtick")
    assert any("MB" in tick.text for tick in ticks)


def test_the_switch_works_from_the_keyboard(browser: Any) -> None:
    browser.find_element("css selector", ".switch input[value=rounds]").send_keys("\ue014" * 2)
    assert shown_titles(browser) == [TITLES["bytes"]] * 3


def test_the_scale_of_losses_changes_and_that_of_accuracy_does_not(browser: Any) -> None:
    choose(browser, "log")
    assert layouts(browser, "yaxis.type")[:3] == ["log", "linear", "log"]


def test_a_name_hides_its_curve(browser: Any) -> None:
    names = "return document.querySelector('.plot').data.map((t) => t.name).filter((n) => n).length"
    assert browser.execute_script(names) == 3
    chip = browser.find_element("css selector", ".legend button")
    chip.click()
    assert browser.execute_script(names) == 2
    assert chip.get_attribute("aria-pressed") == "false"
    chip.click()
    assert browser.execute_script(names) == 3


def test_diagnostics_are_drawn_when_opened(browser: Any) -> None:
    browser.find_element("css selector", "summary").click()
    settle(browser)
    assert len(layouts(browser, "width")) == 7


def test_dark(browser: Any) -> None:
    body = "return getComputedStyle(document.body).backgroundColor"
    assert browser.execute_script(body) == "rgb(255, 255, 255)"
    prefer_dark(browser)
    assert browser.execute_script(body) == "rgb(20, 23, 28)"
    assert set(layouts(browser, "paper_bgcolor")) == {"#14171c"}
    # What is painted, in the middle of the first chart's margin.
    fill = "return getComputedStyle(document.querySelector('.main-svg')).backgroundColor"
    assert browser.execute_script(fill) == "rgb(20, 23, 28)"


def test_a_phone_does_not_scroll_sideways(browser: Any) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    settle(browser)
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    assert max(layouts(browser, "width")) <= 390
    # Tables that are wider scroll in their own boxes. The names of their rows stay in sight, and
    # every heading of a column can be read when it is scrolled to.
    hidden = browser.execute_script(
        """
        document.querySelectorAll("details").forEach((part) => { part.open = true; });
        const wrong = [];
        for (const box of document.querySelectorAll(".scroll")) {
          box.scrollIntoView({ block: "center" });
          for (const cell of box.querySelectorAll("thead th:not(:first-child)")) {
            cell.scrollIntoView({ block: "center", inline: "end" });
            const edge = box.querySelector("th").getBoundingClientRect();
            const at = cell.getBoundingClientRect(), all = box.getBoundingClientRect();
            const read = at.left >= edge.right - 1 && at.right <= all.right + 1;
            const named = Math.abs(edge.left - all.left) <= 1 && edge.width <= 150;
            const whole = cell.scrollWidth <= cell.clientWidth;
            if (!(read && named && whole)) wrong.push(cell.textContent);
          }
        }
        return wrong;
        """
    )
    assert hidden == []
    wide = (
        "return [...document.querySelectorAll('.scroll')].some(b => b.scrollWidth > b.clientWidth)"
    )
    assert browser.execute_script(wide)


def test_paper_is_light_and_complete_even_from_a_dark_screen(browser: Any) -> None:
    prefer_dark(browser)
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert set(layouts(browser, "paper_bgcolor")) == {"#ffffff"}
    assert len(layouts(browser, "width")) == 7
    assert max(layouts(browser, "width")) <= 680
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    assert set(layouts(browser, "paper_bgcolor")[:3]) == {"#14171c"}
    assert browser.find_elements("css selector", "details[open]") == []
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert pdf.startswith(b"%PDF")


def test_a_watched_page_follows_its_run_without_loading_again(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charts, the axis, hidden curves and open parts stay as they are."""
    monkeypatch.setattr("fafed.report.watch.FRESH", 0.0)
    write_data(tmp_path / "data")
    settings = experiment(tmp_path / "data", eval_every=1)
    made = [
        Experiment.from_dict(settings | {"algorithm": {"name": name}})
        for name in ("fafed", "fedavg")
    ]
    first, second = (RunDir.for_experiment(one, tmp_path / "runs") for one in made)
    points = "return document.querySelector('.plot').data.at(-1).x.length"
    wait = waiting.WebDriverWait(browser, 20, 0.05)

    def follow(record: Any) -> None:
        wait.until(lambda _: browser.execute_script(points) == record.round)
        if record.round == 2:
            choose(browser, "gradients")
            browser.find_element("css selector", ".legend button").click()
            browser.find_element("css selector", "#settings summary").click()
            browser.execute_script("window.mine = document.querySelector('.plot')")

    with serving([tmp_path / "runs"]) as address:
        browser.get(address)
        assert "No round is finished yet" in browser.find_element("css selector", "h1").text
        execute(made[0], first)
        wait.until(lambda _: browser.find_elements("css selector", ".js-plotly-plot"))
        execute(made[1], second, follow)
        wait.until(lambda _: "2 finished" in browser.find_element("css selector", "#watch").text)
        assert browser.execute_script("return document.querySelector('.plot') === window.mine")
        assert shown_titles(browser)[0] == AXES["gradients"].title
        pressed = [
            chip.get_attribute("aria-pressed")
            for chip in browser.find_elements("css selector", ".legend button")
        ]
        assert pressed == ["false", "true"]
        assert len(browser.find_elements("css selector", "#settings details[open]")) == 1
    wait.until(lambda _: "does not answer" in browser.find_element("css selector", "#watch").text)
    told = [entry["message"] for entry in browser.get_log("browser")]
    assert all("ERR_CONNECTION_REFUSED" in message for message in told)  # the end of the server
