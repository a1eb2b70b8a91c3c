"""What is said before a run over silos begins: who takes part, and what will leave a silo."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from problem import Problem
from small import experiment
from typer.testing import CliRunner

import fafed
from fafed import ConfigError
from fafed.cli import app
from fafed.experiments.config import Experiment
from fafed.silos.server import FederationConfig

GUIDE = Path(__file__).parents[2] / "docs" / "silos.md"


def bytes_up_by_the_guide():
    """algorithm -> vectors that a client sends in its first round, and in each later one."""
    text = GUIDE.read_text("utf-8").split("| algorithm | up, each round | more in the first |")[1]
    rows = [line.split("|")[1:-1] for line in text.split("\n\n")[0].splitlines()[2:]]
    for names, each, more in rows:
        later = int(re.match(r" (\d+) d bytes", each)[1]) // 4
        extra = int(found[1]) // 4 if (found := re.match(r" (\d+) d bytes", more)) else 0
        first = later - extra if "less" in more else later + extra
        for name in re.sub(r"\(.*?\)", "", names).split(","):
            short = name.lower().replace("with momentum", "m")
            yield re.sub(r"[ -]", "", short), (first, later)


@pytest.mark.parametrize(("name", "expected"), list(bytes_up_by_the_guide()))
def test_the_guide_says_what_leaves_a_silo(name, expected):
    p = Problem(3)
    run = p.run(fafed.ALGORITHMS[name](), rounds=2, q=3)
    first, second = (record.bytes_up for record in run)
    vector = 3 * 8 * run.state.shared.x.numel()
    assert (first / vector, (second - first) / vector) == expected


@pytest.mark.parametrize(
    ("silos", "fewest", "words"),
    [
        (["a", "b"], 3, "between 1 and the 2 silos, got 3"),
        (["a", "b"], 0, "between 1 and the 2 silos, got 0"),
        (["a", "a"], None, "'a,a': name each of them once"),
        (["a", ""], None, "'a,': name each of them once"),
        ([], None, "name each of them once"),
    ],
)
def test_who_takes_part(silos, fewest, words):
    with pytest.raises(ConfigError, match=words):
        FederationConfig.with_defaults(silos, fewest)
    assert FederationConfig.with_defaults(["a", "b"]).min_silos == 2


def refused(*arguments):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert isinstance(done.exception, ConfigError), done.output
    return str(done.exception)


def test_a_silo_is_set_up_with_what_there_is(tmp_path):
    site = ["silos", "site", tmp_path, "--allow"]
    assert "is not a folder" in refused(*site, "softmax", "--data", tmp_path / "nowhere")
    assert "did you mean 'softmax'?" in refused(*site, "sofmax", "--data", tmp_path)
    server = ["silos", "server", tmp_path, "--runs", tmp_path]
    assert "is not a file" in refused(*server, "--measure", tmp_path / "test.npz")


def test_a_federation_is_asked_for_what_it_can_do(tmp_path):
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")
    from fafed.silos.transports.nvflare.driver import Driver
    from fafed.silos.transports.nvflare.job import FafedRecipe
    from fafed.silos.transports.nvflare.try_out import allowed

    found = Experiment.from_dict(experiment(tmp_path, algorithm={"name": "mine:Own"}))
    with pytest.raises(ConfigError, match="between 1 and the 2 silos, got 5"):
        FafedRecipe(found, ["a", "b"], min_silos=5)
    with pytest.raises(ConfigError, match="is not a startup kit"):
        Driver(tmp_path, ["a"], username="admin", min_silos=1)
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "resources.json.default").write_text('{"client": {}}', "utf-8")
    with pytest.raises(ConfigError, match="the kit of a silo: give that of an administrator"):
        Driver(tmp_path, ["a"], username="admin", min_silos=1)
    assert "mine:Own" in allowed([found])  # as on the silos of `fafed silos try`
    assert "name each of them once" in refused("silos", "project", "--silos", "a,", "--host", "h")
