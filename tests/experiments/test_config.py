"""One configuration <-> one TOML file."""

from __future__ import annotations

import tomllib

import pytest
import torch

from fafed import FAFED, STEM, ConfigError, FedAvg
from fafed.core.schedules import Linear, Power
from fafed.experiments.config import Experiment
from fafed.experiments.toml_text import presets

BASE = {
    "rounds": 5,
    "data": {"name": "fashion-mnist"},
    "model": {"name": "fashion-cnn"},
    "algorithm": {"name": "fafed", "eta": 0.02},
}


def test_file_and_back(tmp_path):
    content = BASE | {
        "participation": [[0, 1], [2]],
        "clip": 0.25,
        "algorithm": {
            "name": "stem",
            "eta": {"schedule": "power", "kappa": 20.0, "every": "epoch"},
        },
        "settings": {"fedavg": {"eta": 0.1}, "fafed": {"alpha": 0.03}},
        "search": {"fedavg": {"eta": [0.1, 0.2]}},
        "data": {"name": "fashion-mnist", "partition": {"kind": "dirichlet", "alpha": 0.3}},
    }
    one = Experiment.from_dict(content)
    path = tmp_path / "one.toml"
    path.write_text(one.to_toml(), "utf-8")
    two = Experiment.read(path)
    assert one == two
    assert one.digest == two.digest
    assert tomllib.loads(one.to_toml()) == one.to_dict()


def test_the_algorithm_is_built_with_its_settings():
    assert Experiment.from_dict(BASE).algorithm_object(1) == FAFED(eta=0.02)
    scheduled = BASE | {
        "local_steps": 7,
        "algorithm": {"name": "stem", "eta": {"schedule": "power", "kappa": 2.0, "every": "round"}},
    }
    assert Experiment.from_dict(scheduled).algorithm_object(1) == STEM(eta=Power(2.0, every=7))
    scheduled["algorithm"]["eta"]["every"] = "epoch"
    assert Experiment.from_dict(scheduled).algorithm_object(186) == STEM(eta=Power(2.0, every=186))


def test_a_schedule_that_falls_over_the_run_depends_on_its_length():
    falling = {"schedule": "linear", "peak": 0.1, "warmup": 0.1}
    e = Experiment.from_dict(BASE | {"algorithm": {"name": "fedavg", "eta": falling}})
    assert e.algorithm_object(1) == FedAvg(eta=Linear(0.1, warmup=0.1))
    assert e.bound_algorithm(1, [(3,)]) == FedAvg(eta=Linear(0.1, warmup=0.1, over=50))
    assert e.changed(rounds=7).digest != e.digest
    fixed = e.with_algorithm("fedavg", eta=falling | {"over": 70})
    assert fixed.changed(rounds=7).digest == fixed.digest
    with pytest.raises(ConfigError, match="over is 70 steps, the run has 80"):
        fixed.changed(rounds=8)
    with pytest.raises(ConfigError, match=r"'linear' has no 'warm'; .*warmup"):
        e.with_algorithm("fedavg", eta={"schedule": "linear", "peak": 0.1, "warm": 1})


def test_the_length_of_a_run_decides_where_an_algorithm_takes_a_setting_from_it():
    e = Experiment.from_dict(BASE).with_algorithm("fedkron")
    assert e.over_all_rounds == ["rounds"]
    assert e.changed(rounds=7).digest != e.digest
    fixed = e.with_algorithm("fedkron", rounds=20)
    assert fixed.over_all_rounds == []
    assert fixed.changed(rounds=7).digest == fixed.digest


def test_comparison_uses_each_algorithms_own_settings():
    e = Experiment.from_dict(BASE | {"settings": {"fedavg": {"eta": 0.5}}})
    assert e.with_algorithm("fedavg").algorithm.options == {"eta": 0.5}
    assert e.with_algorithm("fafed").algorithm.options == {"eta": 0.02}
    assert e.with_algorithm("stem").algorithm.options == {}


def test_changes_on_the_command_line(tmp_path):
    e = Experiment.read(
        "fashion-mnist-high",
        ["rounds=7", "algorithm.eta=0.5", "data.partition={kind='iid'}", "data.clients=3"],
    )
    assert (e.rounds, e.algorithm.options["eta"], e.data.clients) == (7, 0.5, 3)
    assert e.data.partition == {"kind": "iid"}
    assert e.name == "fashion-mnist-high"
    other = Experiment.read("fashion-mnist-high", ["algorithm.name=fedadagrad"])
    assert "alpha" not in other.algorithm.options


def test_digest_follows_what_decides_the_numbers():
    e = Experiment.from_dict(BASE)
    assert e.digest == Experiment.from_dict(BASE | {"name": "other", "checkpoint_every": 9}).digest
    assert e.digest != e.changed(seed=1).digest
    assert e.digest != e.with_algorithm("fafed", eta=0.3).digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"round": 5}, "unknown key 'round'; did you mean 'rounds'"),
        ({"rounds": 0}, "rounds = 0"),
        ({"rounds": "ten"}, "rounds = 'ten'"),
        ({"rounds": 2.5}, "rounds = 2.5"),
        ({"engine": "vmpa"}, "engine = 'vmpa'"),
        ({"data": {"name": "fashion-mnsit"}}, "did you mean 'fashion-mnist'"),
        ({"data": {"name": "mnist", "client": 3}}, "unknown key 'data.client'; did you mean"),
        ({"data": {}}, "exactly one of name, function, folder"),
        ({"data": {"name": "mnist", "partition": {"kind": "hihg"}}}, "did you mean 'high'"),
        ({"data": {"name": "mnist", "partition": "iid"}}, r"a table, such as { kind = \"dirichlet"),
        ({"algorithm": "fedavg"}, r"algorithm = 'fedavg': it must be a table, such as { name = "),
        ({"settings": {"fedavg": 3}}, r"settings.fedavg = 3: it must be a table, such as { eta"),
        ({"data": {"name": "mnist", "partition": {"form": "groups"}}}, "partition needs a kind"),
        ({"data": {"name": "mnist", "partition": {"kind": "high", "k": 3}}}, "no option 'k'"),
        ({"algorithm": {"name": "fafde"}}, "did you mean 'fafed'"),
        ({"algorithm": {"name": "fafed", "etta": 1}}, "no hyper-parameter 'etta'"),
        ({"algorithm": {"name": "fafed", "rho": 0}}, "FAFED.rho must be"),
        ({"algorithm": {"name": "fafed", "eta": {"kappa": 1.0}}}, "a schedule needs schedule"),
        (
            {"algorithm": {"name": "fafed", "eta": {"schedule": "power", "kapa": 1.0}}},
            "did you mean 'kappa'",
        ),
        ({"settings": {"fedavgg": {}}}, "settings.fedavgg"),
        ({"settings": {"fedavg": {"eta": -1.0}}}, "FedAvg.eta"),
        ({"name": "../x"}, "name = '../x'"),
        ({"num_rounds": 3}, "unknown key 'num_rounds'; fafed's word is rounds$"),
    ],
)
def test_what_is_wrong_is_named_with_the_cure(change, words):
    with pytest.raises(ConfigError, match=words):
        Experiment.from_dict(BASE | change)


def test_files_that_are_not_there_or_not_toml(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'fashion-mnist-high'"):
        Experiment.read("fashion-mnist-hihg")
    bad = tmp_path / "bad.toml"
    bad.write_text("rounds = = 3")
    with pytest.raises(ConfigError, match="not valid TOML"):
        Experiment.read(bad)
    with pytest.raises(ConfigError, match="key=value"):
        Experiment.read("fashion-mnist-high", ["rounds"])


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid_and_say_what_they_are(name):
    text = presets()[name]
    assert text.startswith("# ")
    e = Experiment.read(name)
    assert e.name == name
    for algorithm in ("fedavg", "scaffold", "stem", "fedadam", "fedams", "fafed"):
        e.with_algorithm(algorithm)


def test_there_are_presets_for_the_papers_settings():
    images = {
        f"{data}-{level}"
        for data in ("fashion-mnist", "mnist", "cifar-10")
        for level in ("low", "moderate", "high")
    }
    assert images | {"wikitext-2"} <= set(presets())


def test_there_are_presets_with_partial_participation():
    for name, clients, share in [
        ("cifar-100-dirichlet", 100, 0.1),
        ("cifar-10-dirichlet-0.6", 100, 0.1),
        ("cifar-10-dirichlet-0.1", 100, 0.1),
        ("cifar-10-silos", 10, 1.0),
    ]:
        e = Experiment.read(name)
        assert (e.data.clients, e.participation) == (clients, share)
        for algorithm in ("fedavg", *e.settings):
            found = e.with_algorithm(algorithm).algorithm_object(1)
            assert share == 1.0 or not found.requires_all_clients


def test_the_language_model_preset_is_the_papers():
    e = Experiment.read("wikitext-2")
    assert (e.data.clients, e.batch_size, e.local_steps, e.data.bptt, e.clip) == (
        16,
        20,
        10,
        35,
        0.25,
    )
    stem = e.with_algorithm("stem").algorithm_object(186)
    assert float(stem.eta(torch.tensor(186))) == 20  # the last step of the first epoch
    assert float(stem.eta(torch.tensor(187))) == pytest.approx(20 / 2 ** (1 / 3))
    fafed = e.algorithm_object(186)
    assert float(fafed.eta(torch.tensor(185))) == 1.0
    assert fafed.rho == 0.01
    assert e.with_algorithm("fedadam").algorithm.options["eta_g"] == 0.03


def test_the_name_and_the_digest_of_an_experiment_never_change():
    """Or its run would not be found again, or not go on. A new field must not change them either:
    those of its default value are left out."""
    e = Experiment.from_dict(
        {
            "rounds": 6,
            "data": {"name": "fashion-mnist"},
            "model": {"name": "softmax"},
            "algorithm": {"name": "fedavg", "eta": 0.1},
        }
    )
    assert e.label == "fedavg-seed0-2414671c"
    assert e.digest == ("v2-1ab2119bdd05a9a095e4218c3266f4fca8a37acdcb63289ffef657aedf40ce41")
    assert e.changed(rounds=7).digest == e.digest
    assert e.changed(rounds=7).label != e.label
    assert e.changed(checkpoint_every=5).label == e.label

    class Later(Experiment):
        new: int = 3
        news: str = "none"

    later = Later(**e.to_dict())
    assert (later.digest, later.label) == (e.digest, e.label)
    assert Later(**e.to_dict(), new=4).digest != e.digest
