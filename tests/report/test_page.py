from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from report_runs import config, counts, plain_run, record, run, study

from fafed import ConfigError
from fafed.report import RunData, write
from fafed.report.curves import make_curves
from fafed.report.page import page
from fafed.report.payload import MOST_CLIENTS, heat_maps, thin, to_json
from fafed.report.quantities import primary
from fafed.report.sections import compared, finding, settings
from fafed.report.tables import table

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>&'\""


def data_of(document: str) -> Any:
    """The embedded JSON, cut out as a browser would: up to the first closing tag."""
    match = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', document)
    assert match
    return json.loads(match[1])


def text_of(document: str) -> str:
    """What a person reads: no scripts, styles or tags."""
    bare = re.sub(r"<(script|style).*?</\1>", "", document, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", bare).replace("&nbsp;", " ").replace("\u00a0", " ")


def test_write_makes_the_folder_the_page_and_the_pictures(tmp_path: Path) -> None:
    path = write([run(rounds=4)], tmp_path / "a" / "b", title="Demo")
    assert path == tmp_path / "a" / "b" / "report.html"
    assert "<h1>Demo</h1>" in path.read_text(encoding="utf-8")
    assert (path.parent / "curves-rounds.svg").exists()


def test_no_runs_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        write([], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_whatever_names_contain_stays_text() -> None:
    bad = dataclasses.replace(
        run(rounds=4),
        name=EVIL,
        config=config(EVIL, name=EVIL, options={EVIL: EVIL}, data={"name": EVIL, "clients": EVIL}),
        classes=[EVIL] * 10,
        records=[record(1, 1.0, {EVIL: 0.5, "accuracy": 0.1}, {EVIL: 1.0})],
    )
    trial = {"params": {EVIL: EVIL}, "value": 1.0, "state": EVIL}
    bad_study = dataclasses.replace(
        study(3), name=EVIL, parameters=[EVIL], rule=EVIL, trials=[trial]
    )
    document = page([bad, plain_run(0.5)], title=EVIL, studies=[bad_study])
    assert "<script>alert" not in document
    assert "<img" not in document.split("<script>")[0]
    assert document.count("<script>") == 2  # Plotly's and ours, as the policy allows by hash
    assert data_of(document)["curves"][0]["label"] == EVIL


def test_json_is_inert_in_html_and_has_no_nan() -> None:
    text = to_json({"a": "</script><!--&\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--&\u2028"}
    with pytest.raises(ValueError, match="JSON"):
        to_json(math.nan)


def test_nothing_can_be_fetched() -> None:
    document = page([plain_run(0.5, 0.6)])
    assert "default-src &#x27;none&#x27;" in document
    head = document.split("<script")[0]
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!data:)\w""", head)


def test_unmeasured_rounds_are_left_out_of_the_data() -> None:
    payload = data_of(page([plain_run(0.2, None, 0.6)]))
    train, accuracy = payload["charts"]
    (line,) = accuracy["series"]
    assert line["mean"] == [0.2, 0.6]
    assert payload["grids"][line["grid"]]["rounds"] == [1, 3]
    assert payload["grids"][train["series"][0]["grid"]]["bytes"] == [300, 600, 900]
    assert "low" not in line  # one seed has no spread


def test_long_lines_are_thinned() -> None:
    assert thin(5, most=9) == [0, 1, 2, 3, 4]
    assert thin(9, most=3) == [0, 4, 8]
    records = [record(i, 1.0 / i) for i in range(1, 5001)]
    document = page([RunData("run", config(), records)])
    rounds = data_of(document)["grids"][0]["rounds"]
    assert (len(rounds), rounds[0], rounds[-1]) == (2000, 1, 5000)
    assert "more than 2,000 points" in text_of(document)


def test_a_baseline_wins_no_cost() -> None:
    """It sends nothing, so it would always be the cheapest."""
    methods = [
        plain_run(0.2, 0.7 - gap, 0.8, algorithm=name, seed=seed)
        for name, gap in (("fafed", 0.0), ("stem", 0.6))
        for seed in (0, 1)
    ]
    nothing = {"bytes_up": 0, "bytes_down": 0}
    free = [
        dataclasses.replace(
            one,
            config=one.config | {"baseline": "pooled"},
            records=[own | nothing for own in one.records],
        )
        for one in methods[:2]
    ]
    document = page(free + methods, target=0.6)
    tiles = document[document.index('<dl class="tiles">') : document.index("</dl>")]
    assert re.findall(r"<dd>(.*?)</dd>", tiles) == ["fafed baseline=default"] * 4
    alone = page([*free, *methods[:2]], target=0.6)
    assert '<dl class="tiles">' not in alone  # one method has nobody to win against


def test_the_finding_names_the_best_the_gap_and_the_doubt() -> None:
    stem = [plain_run(0.7, algorithm="stem"), plain_run(0.7, algorithm="stem", seed=1)]
    clear = [plain_run(0.80), plain_run(0.82, seed=1), *stem]
    assert finding(table(clear), primary(clear)) == (
        "<strong>fafed</strong> ends with the highest test accuracy, "
        "<strong>81.00 ± 1.41\u00a0%</strong> (mean ±&nbsp;std over 2 seeds), "
        "11.00 points above stem. This is more than the spread over seeds."
    )
    close = [
        *clear[:2],
        plain_run(0.80, algorithm="stem"),
        plain_run(0.81, algorithm="stem", seed=1),
    ]
    assert finding(table(close), primary(close)) == (
        "<strong>fafed</strong> ends with a test accuracy of <strong>81.00 ± 1.41\u00a0%</strong>, "
        "<strong>stem</strong> with <strong>80.50 ± 0.71\u00a0%</strong>. "
        "No winner: the difference is smaller than the spread over seeds."
    )
    once = [plain_run(0.9), plain_run(0.1, algorithm="stem")]
    assert finding(table(once), primary(once)).endswith("One seed: no winner is named.")
    document = text_of(page(once))
    assert "one seed: no winner" in document
    assert "Bold:" not in document
    alone = [plain_run(0.5)]
    assert finding(table(alone), primary(alone)) == (
        "<strong>fafed</strong> ends with a test accuracy of <strong>50.00\u00a0%</strong> "
        "(one seed)."
    )
    lost = [plain_run(math.nan)]
    assert finding(table(lost), primary(lost)) == "No curve ends with a finite test accuracy."


def test_what_was_compared() -> None:
    runs = [plain_run(0.5, 0.6, seed=s, algorithm=a) for a in ("fafed", "stem") for s in (0, 1)]
    assert compared(make_curves(runs)) == (
        "fafed and stem on fashion-mnist with 20 clients (fashion-cnn) · 2 seeds each · 2 rounds"
    )


def test_the_clients_of_own_data_are_counted() -> None:
    """The default of `data.clients` says nothing about a folder."""
    run = plain_run(0.5)
    assert run.config["data"]["clients"] == 20
    own = {"data": run.config["data"] | {"folder": "mine"}}
    run = dataclasses.replace(run, config=run.config | own)
    assert "clients" not in compared(make_curves([run]))
    run = dataclasses.replace(run, counts=[[1, 2]] * 3)
    assert "with 3 clients" in compared(make_curves([run]))
    shown = settings(make_curves([run]))
    assert "data.folder" in shown
    assert "data.clients" not in shown
    assert "data.partition" not in shown


def test_the_page_says_what_it_must() -> None:
    runs = [plain_run(0.2, 0.8), plain_run(0.2, 0.5, algorithm="fedavg")]
    text = text_of(page(runs, target=0.7, studies=[study(9)]))
    for part in (
        "Cost of reaching 70 % test accuracy",
        "Target as asked for",
        "not reached",
        "Different between the curves",
        "Shared by all",
        "Tuning",
        "9 trials: 8 complete, 1 pruned",
    ):
        assert part in text


@pytest.mark.parametrize(
    "runs",
    [
        [plain_run(0.5)],
        [plain_run(None)],
        [RunData("bare", {}, [record(1, None)])],
        [plain_run(math.nan, math.inf)],
        [plain_run(0.5, 0.6), plain_run(0.5, seed=1)],
    ],
    ids=["one record", "no test", "nothing at all", "diverged", "different lengths"],
)
def test_odd_runs_have_a_page(runs: list[RunData]) -> None:
    document = page(runs)
    assert "Final numbers" in document
    data_of(document)


def test_twelve_algorithms_times_five_seeds_stay_small() -> None:
    runs = [run(f"alg-{a}", s, rounds=30) for a in range(12) for s in range(5)]
    payload = data_of(page(runs))
    assert len({(c["hue"], c["dash"]) for c in payload["curves"]}) == 12
    assert len(to_json(payload)) < 200_000


def test_heat_maps_one_per_way_of_dividing_the_data() -> None:
    other = config("stem", data={"name": "fashion-mnist", "clients": 30})
    runs = [
        run(rounds=2),
        run(seed=1, rounds=2),
        dataclasses.replace(run("stem", rounds=2), config=other, counts=counts(300), classes=None),
    ]
    first, second = heat_maps(make_curves(runs))
    assert (first["total_clients"], first["seed"]) == (20, 0)
    assert first["title"] == "data.clients=20, data.partition.kind=high, data.partition.form=groups"
    assert first["by_client"] == [sum(row) for row in counts()]
    assert first["by_class"] == [sum(column) for column in zip(*counts(), strict=True)]
    assert (second["total_clients"], len(second["clients"])) == (300, MOST_CLIENTS)
    assert second["classes"][:2] == ["class 0", "class 1"]
