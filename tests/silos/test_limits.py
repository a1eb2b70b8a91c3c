"""What a silo refuses: attacks of a server on a silo's rows and on its machine.

Each attack on the rows is one that works: with its limit lifted, the server gets what the table
says. With the silo's file as `fafed silos site` writes it, the silo refuses it by name.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from silo_tools import local_federation, run
from small import experiment, write_data

from fafed import models
from fafed.experiments.config import Experiment
from fafed.experiments.toml_text import presets
from fafed.silos import messages
from fafed.silos.bounds import Bounds
from fafed.silos.limits import Limits
from fafed.silos.messages import EMPTY, ExchangeId, Message
from fafed.silos.site import Site
from fafed.silos.worker import Worker

ROWS, INPUTS, CLASSES = 200, 12, 10
GUIDE = Path(__file__).parents[2] / "docs" / "silos.md"


def write_rows(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(0)
    x, y = r.normal(size=(ROWS, INPUTS)).astype(np.float32), r.integers(0, CLASSES, ROWS)
    folder.mkdir(parents=True)
    np.savez(folder / "records.npz", inputs=x, targets=y)
    return x, y


class Server:
    """One that means harm: it asks a silo whatever it likes."""

    def __init__(self, tmp: Path, **limits: object) -> None:
        self.x, self.y = write_rows(tmp / "rows")
        file = tmp / "silo" / "fafed.toml"
        file.parent.mkdir()
        lines = [f"{name} = {json.dumps(value)}" for name, value in limits.items()]
        file.write_text(
            'folder = "kept"\nallow = ["softmax", "mlp"]\n'
            f'[data]\nfolder = "{tmp / "rows"}"\n[limits]\n' + "\n".join(lines),
            "utf-8",
        )
        self.file = file
        self.silo = Worker("silo", Site.read(file))
        self.runs = 0
        self.privacy: dict[str, object] = {}

    def begin(self, clients: int = 3, **changes: object) -> None:
        """Say hello for a new run; `Said` if the silo refuses."""
        content = experiment(Path("nowhere"), rounds=100_000) | {
            "batch_size": 32,
            "opening_batch_size": 64,
            "local_steps": 2,
            "model": {"name": "softmax", "inputs": INPUTS, "outputs": CLASSES},
            "algorithm": {"name": "fedavg", "eta": 1.0},
        }
        self.experiment = content | {"privacy": self.privacy} | changes
        self.runs += 1
        self.run = f"run-{self.runs}"
        facts = {"experiment": self.experiment, "client": 0, "clients": clients}
        self._ask(messages.write("hello", ExchangeId(self.run), facts, EMPTY))

    def visit(self, round: int, down: tuple[torch.Tensor, ...], exchange: int = 0):
        """What the silo sends back, by name."""
        place = ExchangeId(self.run, round, exchange, "a")
        names = ("x", "t")[: len(down)]
        table = [
            [f"0.{n}", messages.NAMES[leaf.dtype], list(leaf.shape)]
            for n, leaf in zip(names, down, strict=True)
        ]
        packed = messages.pack(down)._replace(table=table)
        facts = {"base": None, "epoch_steps": 1, "opening": round == 1}
        head, body = self._ask(messages.write("visit", place, facts, packed))
        found, at = {}, 0
        for name, _, shape in head["tensors"]:
            count = int(np.prod(shape))
            found[name] = np.frombuffer(body, np.float32, count, at).reshape(shape).astype(float)
            at += 4 * count
        return found

    def _ask(self, request: Message):
        answer = self.silo.handle(request)
        head = json.loads(answer.head)
        if head["kind"] not in ("welcome", "answer"):
            raise Said(head["kind"], head["facts"].get("why", ""))
        return head, bytes(answer.body)

    def known(self, guesses) -> int:
        """How many of the silo's rows the guesses hit, to four digits."""
        hit = [np.flatnonzero((abs(self.x - g) < 1e-4 * (1 + abs(self.x))).all(1)) for g in guesses]
        return len({int(i) for rows in hit for i in rows})


class Said(Exception):
    """The silo did not do it."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")


ZERO = torch.zeros(CLASSES * INPUTS + CLASSES), torch.tensor(0)


def by_class(delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Minus the mean gradient of softmax regression: (classes, inputs) and (classes,)."""
    return delta[: CLASSES * INPUTS].reshape(CLASSES, INPUTS), delta[CLASSES * INPUTS :]


def single_rows(server: Server) -> int:
    """One example a message: its gradient is the example, times a number that is in it, too."""
    server.begin(batch_size=1, local_steps=1)
    guesses = []
    for round in range(1, ROWS + 1):
        weights, bias = by_class(server.visit(round, ZERO)["0.delta"])
        k = int(abs(bias).argmax())
        guesses.append(weights[k] / bias[k])
    return server.known(guesses)


def held_out_rows(server: Server) -> int:
    """All rows but one are held out, so that a batch is one row fifty times; another seed, another
    row."""
    guesses = []
    data = {"folder": "nowhere", "validation": 0.995}
    for seed in range(20):
        server.begin(batch_size=50, local_steps=1, seed=seed, data=data)
        weights, bias = by_class(server.visit(1, ZERO)["0.delta"])
        k = int(abs(bias).argmax())
        guesses.append(weights[k] / bias[k])
    return server.known(guesses)


def label_counts(server: Server, **changes: object) -> int:
    """Where all classes are alike, the gradient of the biases counts the labels of a batch."""
    server.begin(local_steps=1, **({"batch_size": "full"} | changes))
    _, bias = by_class(next(iter(server.visit(1, ZERO[: 1 if changes else 2]).values())))
    sign = -1 if changes else 1
    counts = np.round(ROWS * (sign * bias + 1 / CLASSES)).astype(int)
    return int((counts == np.bincount(server.y, minlength=CLASSES)).sum())


def label_counts_by_mime(server: Server) -> int:
    """The same, by an algorithm that takes a gradient of all rows."""
    return label_counts(server, batch_size=32, algorithm={"name": "mime", "eta": 0.1})


def chosen_weights(server: Server) -> int:
    """Each hidden unit wakes for rows beyond a height along one direction; the difference of two
    neighbours holds the rows between. Everything else is as in an ordinary run."""
    units = 400
    net = models.build("mlp", inputs=INPUTS, hidden=[units], outputs=CLASSES)
    along = torch.randn(INPUTS, generator=torch.Generator().manual_seed(1))
    heights = torch.linspace(-3, 3, units) * along.norm()
    chosen = [along.repeat(units, 1), -heights, torch.zeros(CLASSES, units), torch.zeros(CLASSES)]
    chosen[2][0] = 1e-3
    assert [p.shape for p in net.parameters()] == [c.shape for c in chosen]
    server.begin(
        opening_batch_size=50,
        model={"name": "mlp", "inputs": INPUTS, "hidden": [units], "outputs": CLASSES},
        algorithm={"name": "fafed"},
    )
    found = server.visit(1, (torch.cat([c.reshape(-1) for c in chosen]),))["0.m"]
    weights = np.diff(found[: units * INPUTS].reshape(units, INPUTS), axis=0)
    bias = np.diff(found[units * INPUTS : units * INPUTS + units])
    return server.known([w / b for w, b in zip(weights, bias, strict=True) if b])


ATTACKS = [  # what the server does, the limits that stand in its way, and what it learns without
    (single_rows, {"min_batch_size": 1, "min_local_steps": 1}, ROWS),
    (
        held_out_rows,
        {"min_local_steps": 1, "max_validation": 0.999, "min_rows": 1, "max_batch_share": 50},
        15,  # of 20 seeds some hit the same row
    ),
    (label_counts, {"min_local_steps": 1, "max_batch_share": 1}, CLASSES),
    (label_counts_by_mime, {"min_local_steps": 1, "max_batch_share": 1}, CLASSES),
    (chosen_weights, {"models_from_given_weights": ["mlp"]}, 30),
]
ONE_BY_ONE = [(attack, limits, name) for attack, limits, _ in ATTACKS for name in limits]


@pytest.mark.parametrize(("attack", "limits", "learned"), ATTACKS)
def test_an_attack_works_if_its_limits_are_lifted(attack, limits, learned, tmp_path):
    assert attack(Server(tmp_path, **limits)) >= learned


@pytest.mark.parametrize(
    ("attack", "limits", "learned"),
    # many visits and many runs take time
    [pytest.param(*one, marks=pytest.mark.slow if i < 2 else ()) for i, one in enumerate(ATTACKS)],
)
def test_an_attack_learns_next_to_nothing_under_differential_privacy(
    attack, limits, learned, tmp_path
):
    """With all of its limits lifted. A count of labels may be right by chance."""
    server = Server(tmp_path, **limits)
    server.privacy = {"level": "example", "noise": 4.0, "clip": 1.0, "delta": 1e-5}
    by_chance = CLASSES // 2 if learned == CLASSES else 0
    assert attack(server) <= by_chance < learned


@pytest.mark.parametrize("attack", [attack for attack, *_ in ATTACKS])
def test_an_attack_is_refused_by_default(attack, tmp_path):
    with pytest.raises(Said, match=r"refused: .*who runs the silo"):
        attack(Server(tmp_path))


@pytest.mark.parametrize(("attack", "limits", "name"), ONE_BY_ONE)
def test_each_limit_alone_refuses_and_says_its_name(attack, limits, name, tmp_path):
    others = {other: value for other, value in limits.items() if other != name}
    with pytest.raises(Said, match=f"refused: .*{name}"):
        attack(Server(tmp_path, **others))


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"threads": 10**6}, "max_threads = 16"),
        ({"clients": 10**7}, "max_clients = 1000"),
        ({"local_steps": 10**6}, r"max_local_steps = 1000"),
        ({"local_steps": None, "local_epochs": 5.0}, "local_epochs = 5.0 needs the sizes of all"),
        ({"model": {"name": "mlp", "hidden": [10**6, 10**6]}}, r"max_parameters = 1e\+09"),
    ],
)
def test_the_machine_is_not_asked_for_more_than_it_may_give(changes, limit, tmp_path):
    """Refused before anything is loaded: there are no rows yet."""
    server = Server(tmp_path)
    (tmp_path / "rows" / "records.npz").unlink()
    threads = torch.get_num_threads()
    with pytest.raises(Said, match=limit):
        server.begin(**changes)
    assert torch.get_num_threads() == threads


def test_a_budget_outlives_the_silo_s_process(tmp_path):
    """64 draws of 200 rows are 0.32 visits of each."""
    server = Server(tmp_path, max_visits_per_run=1.0, max_visits_per_day=1.5)
    server.begin()
    for round in (1, 2, 3):
        server.visit(round, ZERO)
        server.silo = Worker("silo", Site.read(server.file))
    with pytest.raises(Said, match="max_visits_per_run = 1;"):
        server.visit(4, ZERO)
    server.begin(seed=1)  # another run, the same day
    server.visit(1, ZERO)
    with pytest.raises(Said, match=r"max_visits_per_day = 1\.5"):
        server.visit(2, ZERO)
    file = tmp_path / "silo" / "kept" / "budget.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"day": "2020-01-01"}))  # the next day
    server.visit(2, ZERO)
    file.write_text("{")  # it is no excuse to have lost count
    with pytest.raises(Said, match="failed"):
        server.visit(3, ZERO)


def test_who_joins_late_cannot_check_and_may_refuse(tmp_path):
    server = Server(tmp_path / "a")
    server.begin()
    server.visit(5, tuple(leaf + 1 for leaf in ZERO))
    log = (tmp_path / "a" / "silo" / "kept" / "log.txt").read_text()
    assert "joins the run run-1 in round 5: what it began with was not checked" in log
    server = Server(tmp_path / "b", join_late=False)
    server.begin()
    with pytest.raises(Said, match="join_late = false"):
        server.visit(5, ZERO)
    server.visit(1, ZERO)
    server.visit(5, ZERO)


def test_the_server_s_words_forge_no_line_in_the_silo_s_log(tmp_path):
    server = Server(tmp_path)
    with pytest.raises(Said):
        server.begin(model={"name": "os:system\n2026-01-01 00:00:00,000 INFO all is well"})
    lines = (tmp_path / "silo" / "kept" / "log.txt").read_text().splitlines()
    assert len(lines) == 1
    assert "all is well" in lines[0]


def test_what_is_kept_is_its_owner_s_alone(tmp_path):
    """On a silo, and what a run over silos adds to a run directory, whatever the umask."""
    write_data(tmp_path / "data", 3)
    found = Experiment.from_dict(experiment(tmp_path / "data", rounds=1, engine="loop"))
    before = os.umask(0)
    try:
        wire = local_federation(tmp_path / "kept", allow=["softmax", str(tmp_path / "data")])
        place = run(found, tmp_path, wire)
    finally:
        os.umask(before)
    kept = list((tmp_path / "kept").rglob("*"))
    assert {p.name.partition("-")[0] for p in kept} >= {"audit.jsonl", "log.txt", "plan.json"}
    assert any(p.suffix == ".state" for p in kept)
    added = [place.path / name for name in ("audit.jsonl", "log.txt", "silos.json")]
    for path in (tmp_path / "kept", *kept, place.path, *added):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_presets_keep_the_limits():
    """But for the paper's low level of heterogeneity, whose batches have 5 examples, and those of
    other papers with small batches."""
    site = Site.model_validate({"folder": Path(), "allow": [], "data": {"folder": "x"}})
    for name in presets():
        found = Experiment.read(name)
        small = found.batch_size < site.limits.min_batch_size
        others = ("wikitext-2", "femnist", "shakespeare")
        assert small == (name.endswith("-low") or name in others), name
        site.limits.check_machine(found, found.data.clients)


def test_the_guide_shows_the_whole_file_and_its_defaults():
    blocks = GUIDE.read_text("utf-8").split("```toml\n")[1:]
    found = [tomllib.loads(block.split("```")[0]) for block in blocks]
    (site,) = [one for one in found if one.get("limits")]
    assert site["limits"] == Limits().model_dump()
    assert set(site) == set(Site.model_fields)
    assert site["limit"] == Site.model_validate(site).limit
    (bounds,) = [one["bounds"] for one in found if "bounds" in one]
    assert bounds == Bounds().model_dump()
