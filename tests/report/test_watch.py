"""`fafed watch`: a real server on a real port, beside runs that go on."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest
from small import experiment, write_data
from typer.testing import CliRunner

from fafed.cli import app
from fafed.errors import FafedError
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir, all_runs
from fafed.experiments.tuning import tune
from fafed.report import watch
from fafed.report.chosen import chosen
from fafed.report.watch import serving


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(watch, "FRESH", 0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def made(data, **changes):
    return Experiment.from_dict(experiment(data, eval_every=1, **changes))


def get(address, path="", method="GET", **headers):
    """Status, headers and text, of exactly this path."""
    host, port = re.fullmatch(r"http://([\d.]+):(\d+)/", address).groups()
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    connection.request(method, path or "/", headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.headers), answer.read().decode()


def state(address):
    return json.loads(get(address, "/state")[2])


def test_the_report_follows_a_run_that_goes_on(data, tmp_path):
    root = tmp_path / "runs"
    e = made(data)
    seen = []
    with serving([root]) as address:
        assert "No round is finished yet" in get(address)[2]
        seen.append(state(address))

        def look(record):
            now = state(address)
            seen.append(now)
            assert (f"round {record.round} of 6" if record.round < 6 else "1 finished") in now[
                "text"
            ]
            assert f'data-version="{now["version"]}"' in get(address, "/report")[2]

        execute(e, RunDir.for_experiment(e, root), look)
        versions = [one["version"] for one in seen]
        assert len(set(versions)) == 7  # before the first round, and after each of six
        last = state(address)
        assert "1 run · 1 finished" in last["text"]
        assert state(address) == last  # nothing changes any more
        page = get(address)[2]
        assert "plotly" in page.lower()
        assert "fafed ends with a" in re.sub("<.*?>", "", page)
        assert len(get(address, "/report")[2]) < 100_000  # without the scripts


def test_only_what_changed_is_read_again(data, tmp_path, monkeypatch):
    root = tmp_path / "runs"
    for seed in (0, 1):
        e = made(data, seed=seed)
        execute(e, RunDir.for_experiment(e, root))
    read, real = [], RunDir.data
    monkeypatch.setattr(RunDir, "data", lambda place: read.append(place.path.name) or real(place))
    with serving([root]) as address:
        for path in ("", "/report", "/state"):
            get(address, path)
        assert len(read) == 2
        e = made(data, seed=2)
        execute(e, RunDir.for_experiment(e, root))
        get(address, "/report")
        assert len(read) == 3


def test_damaged_and_half_written_folders_are_named_and_break_nothing(data, tmp_path):
    root = tmp_path / "runs"
    e = made(data)
    execute(e, RunDir.for_experiment(e, root))
    for name, text in {
        "cut": "rounds = ",
        "binary": "\x00\xff",
        "half": e.to_toml(),
    }.items():
        (root / name).mkdir()
        (root / name / "experiment.toml").write_text(text, "latin-1")
    (root / "half" / "records.jsonl").write_text('{"round": 1, "st')
    (root / "wrong").mkdir()
    (root / "wrong" / "experiment.toml").write_text(e.to_toml())
    (root / "wrong" / "records.jsonl").write_text("<script>alert(1)</script>\n")
    (root / "folder" / "experiment.toml").mkdir(parents=True)
    with serving([root]) as address:
        status, _, page = get(address)
        assert status == 200
        assert "1 finished" in state(address)["text"]
        assert "damaged or not readable" in state(address)["text"]
        assert "<script>alert" not in page
        report = get(address, "/report")[2]
        for name in ("cut", "binary", "wrong"):
            assert f"{name} is left out, it is damaged" in report


@pytest.mark.parametrize(
    "path",
    ["/../secret", "/..%2fsecret", "//etc/passwd", "/etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
     "/page.js", "/report/", "/state?x=1", "/./", "/experiment.toml", "http://127.0.0.1/state2"],
)  # fmt: skip
def test_no_other_path_is_known(path, tmp_path):
    (tmp_path / "secret").write_text("secret words")
    with serving([tmp_path / "runs"]) as address:
        status, _, text = get(address, path)
    assert status == 404
    assert "secret words" not in text
    assert "root:" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_is_answered(method, tmp_path):
    with serving([tmp_path]) as address:
        assert get(address, "/", method)[0] == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:1234", 200),  # a tunnel may have another port
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost@evil.example", 403),
        ("", 403),
    ],
)
def test_a_foreign_name_is_refused(host, status, tmp_path):
    """A web page whose name is made to point to 127.0.0.1 still sends its own name."""
    with serving([tmp_path]) as address:
        for path in ("/", "/state", "/report"):
            assert get(address, path, Host=host)[0] == status


def test_the_answers_are_for_this_page_alone(tmp_path):
    with serving([tmp_path]) as address:
        _, headers, page = get(address)
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers
    assert "default-src &#x27;none&#x27;" in page
    assert "connect-src &#x27;self&#x27;" in page


def test_it_listens_on_this_machine_alone_and_ends(tmp_path):
    before = threading.active_count()
    with serving([tmp_path]) as address:
        port = int(address.split(":")[2].strip("/"))
        assert address.startswith("http://127.0.0.1:")
        others = {one[4][0] for one in socket.getaddrinfo(socket.gethostname(), None)}
        for other in others - {"127.0.0.1"}:
            family = socket.AF_INET6 if ":" in other else socket.AF_INET
            with socket.socket(family) as door:
                door.settimeout(2)
                assert door.connect_ex((other, port)) != 0
        words = f"port {port} cannot be used: .* Choose another"
        with pytest.raises(FafedError, match=words), serving([tmp_path], port):
            pass
    with socket.socket() as door:
        assert door.connect_ex(("127.0.0.1", port)) != 0
    assert threading.active_count() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_where_and_ends_cleanly(number, tmp_path):
    job = subprocess.Popen(
        [sys.executable, "-m", "fafed", "watch", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        address = job.stdout.readline().split()[0]
        assert get(address)[0] == 200
        job.send_signal(number)
        _, errors = job.communicate(timeout=20)
        assert (job.returncode, errors) == (0, "")
    finally:
        job.kill()
        job.communicate()


def test_the_trials_of_a_search_are_no_runs(data, tmp_path):
    """The search makes them, so that its folders are the real ones."""
    root = tmp_path / "runs"
    e = made(data, search={"fafed": {"eta": [0.1]}})
    tune(e, "fafed", root, jobs=1)
    execute(e, RunDir.for_experiment(e, root))
    places = all_runs(root)
    assert len(places) == 2
    found, said = chosen([root, places[0].path])
    assert [place.path for place in found] == [places[0].path]  # once, though it is named twice
    trials = root / e.name / "tune-fafed"
    words = f"1 trial of a search is left out: `fafed report {trials}` shows it"
    assert said == [words]
    assert [place.path for place in chosen([trials])[0]] == [places[1].path]
    assert [place.path for place in chosen([places[1].path])[0]] == [places[1].path]
    told = CliRunner().invoke(app, ["runs", "--runs", str(root), "--json"])
    assert [row["run"] for row in json.loads(told.stdout)] == [str(places[0].path)]
    assert f"`fafed runs --runs {trials}` shows it" in told.stderr
    with serving([root]) as address:
        assert "1 run ·" in state(address)["text"]
        assert words in get(address, "/report")[2]
