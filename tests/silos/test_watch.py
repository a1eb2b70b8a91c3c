"""`fafed watch` on the directory of a run over silos, while the run goes on."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request

import pytest
from silo_tools import NAMES, local_federation, run
from small import experiment, write_data

from fafed.experiments.config import Experiment
from fafed.report.watch import serving


def test_a_run_over_silos_is_watched_while_it_goes_on(tmp_path):
    write_data(tmp_path / "data", 3)
    found = Experiment.from_dict(experiment(tmp_path / "data", rounds=3, engine="loop"))
    wire = local_federation(tmp_path, NAMES, allow=["softmax", str(tmp_path / "data")])
    seen = []

    with serving([tmp_path]) as address:

        def get(page, **headers):
            asked = urllib.request.Request(address + page, headers=headers)
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return answer.read().decode()

        def look(record):
            """The run waits here, so what the page shows is a run that goes on."""
            end = time.monotonic() + 10
            while f"round {record.round} of 3" not in (text := json.loads(get("state"))["text"]):
                if record.round == 3 and "1 finished" in text:
                    break
                assert time.monotonic() < end, text
                time.sleep(0.1)
            seen.append(get("report"))

        assert "No round is finished yet" in get("")
        run(found, tmp_path, wire, look)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get("", Host="fl.example.org:8000")  # a page of another name reads nothing
    assert len(seen) == 3
    assert all('id="report-data"' in page for page in seen)
    assert len(set(seen)) == 3
