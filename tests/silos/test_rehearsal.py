"""`fafed silos site` and `fafed silos check`: what a silo learns before anything is submitted."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from kits import make_kit
from silo_tools import Wire
from silo_tools import run as run_over
from small import experiment
from typer.testing import CliRunner

from fafed.cli import app
from fafed.cli.silo_check import _data
from fafed.errors import ConfigError, DataError
from fafed.experiments.config import Experiment
from fafed.privacy.accounting import Released, epsilon_of
from fafed.silos.limits import Limits, Refusal
from fafed.silos.private import Ledger
from fafed.silos.rehearsal import look
from fafed.silos.site import Site, SiteData
from fafed.silos.worker import Worker

TABLE = 'target = "sick"\ninputs = ["a", "b", "c"]\nmissing = "mean"\n'
TABLE += '[categories]\nc = ["x", "y"]\n'


def told(*arguments):
    done = CliRunner().invoke(app, ["silos", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def write_csv(folder, rows=100):
    folder.mkdir()
    r = np.random.default_rng(0)
    lines = [
        f"{r.normal():.3f},{r.normal() if i else ''},{'xy'[i % 2]},{i % 3}" for i in range(rows)
    ]
    (folder / "records.csv").write_text("a,b,c,sick\n" + "\n".join(lines) + "\n")


@pytest.fixture
def kit(tmp_path):
    """The kit of a silo with a table, set up by the command."""
    write_csv(tmp_path / "records")
    (tmp_path / "table.toml").write_text(TABLE)
    made = make_kit(tmp_path / "north")
    rules = ("--table", tmp_path / "table.toml")
    told("site", made, "--data", tmp_path / "records", "--allow", "softmax", *rules)
    return made


def written(tmp_path, **changes):
    content = experiment(tmp_path / "nowhere", name="hospitals", rounds=10, batch_size=32)
    content |= {"opening_batch_size": 40, "model": {"name": "softmax", "inputs": 4, "outputs": 3}}
    path = tmp_path / "hospitals.toml"
    path.write_text(Experiment.from_dict(content | changes).to_toml(), "utf-8")
    return path


def test_a_silos_file_has_its_rules_for_tables(kit):
    site = Site.read(kit / "local" / "fafed.toml")
    assert site.tell_faults
    assert site.data.rules().columns() == ("a", "b", "c=x", "c=y")
    shown = told("check", kit)
    assert "rows     100" in shown
    assert "columns  a, b, c=x, c=y" in shown
    assert "classes  0: 34, 1: 33, 2: 33 rows" in shown
    assert "min_batch_size = 32" in shown


def test_the_kit_of_another_member_is_refused_and_left_as_it_is(kit, tmp_path):
    """A server's kit with the rules of a silo would start, and would not work."""
    server = make_kit(tmp_path / "server", member="servers")
    rules = ("--data", tmp_path / "records", "--allow", "softmax", "--table")
    with pytest.raises(ConfigError, match=r"server is the kit of the server: give that of a silo"):
        told("site", server, *rules, tmp_path / "table.toml")
    before = (kit / "local" / "fafed.toml").read_text()
    with pytest.raises(ConfigError, match=r"north is the kit of a silo: give that of the server"):
        told("server", kit, "--runs", tmp_path / "runs")
    with pytest.raises(ConfigError, match=r"north is the kit of a silo"):
        told("server", kit)
    assert (kit / "local" / "fafed.toml").read_text() == before
    assert not (kit / "local" / "fafed.toml.old").exists()
    told("server", server, "--runs", tmp_path / "runs")
    with pytest.raises(ConfigError, match=r"that `fafed silos site` has set up"):
        told("check", make_kit(tmp_path / "south"))


def test_a_wrong_line_in_a_silos_file_is_explained(kit):
    file = kit / "local" / "fafed.toml"
    file.write_text(file.read_text() + 'min_bath_size = 3\nmin_rows = "many"\n')
    with pytest.raises(ConfigError) as error:
        told("check", kit)
    assert "unknown key 'limits.min_bath_size'; did you mean 'min_batch_size'?" in str(error.value)
    assert "limits.min_rows = 'many': Input should be a valid integer" in str(error.value)


def test_what_is_odd_about_the_data_is_noted(tmp_path):
    """Gaps that were filled, rows that were left out, a column without information, one class."""
    site = {"function": "", "folder": str(tmp_path)}
    rows = "1,,5,x,yes\n2,7,5,y,yes\n,,5,y,yes\n"
    (tmp_path / "records.csv").write_text(f"a,b,c,d,sick\n{rows}")
    rules = {"target": "sick", "inputs": ["a", "b", "c", "d"], "classes": ["no", "yes"]}
    rules |= {"missing": "drop", "fill": {"b": 1.0}, "categories": {"d": ["x", "y", "z"]}}
    found = look(SiteData(**site, table=rules))
    assert found.notes == (
        "rows with gaps, left out: 1",
        "gaps, filled by the rules: b 1",
        "all rows have the same class",
        "the same number in all rows: c",
    )
    assert "classes  yes: 2 rows (this stays here)" in "\n".join(_data(found))
    (tmp_path / "records.csv").write_text("a,ward,sick\n1,x,0\n2,y,1\n")
    assert look(SiteData(**site)).notes == ("columns with text, left out: ward",)


def test_what_would_leave_is_what_leaves(kit, tmp_path):
    """Compared with the audit file of a run over silos."""
    path = written(tmp_path, rounds=2)
    shown = told("check", kit, path)
    assert "hospitals: this silo would take part" in shown
    assert not (kit / "fafed").exists()  # a rehearsal leaves nothing, and spends no visits
    worker = Worker("north", Site.read(kit / "local" / "fafed.toml"))
    run_over(Experiment.read(path), tmp_path, Wire({"north": worker}))
    lines = (kit / "fafed" / "audit.jsonl").read_text().splitlines()
    sent = [line for line in map(json.loads, lines) if line["direction"] == "sent"]
    table = shown.split("content\n")[1].splitlines()
    listed = [(line[20:30].strip(), int(line[30:42].replace(",", ""))) for line in table]
    assert [kind for kind, _ in listed] == [*(line["kind"] for line in sent), "2 rounds"]
    for (_, size), line in zip(listed, sent, strict=False):  # an attempt's digits of the loss vary
        assert abs(size - line["bytes"]) < 50
    assert listed[-1][1] == sum(size for _, size in listed[:-1])


def test_rounds_count_in_the_sum(kit, tmp_path):
    shown = told("check", kit, written(tmp_path, algorithm={"name": "fedavg"}))
    lines = [line for line in shown.splitlines() if line.startswith("  ") and "," in line]
    sizes = {
        line[2:20].strip(): int(line[30:42].replace(",", ""))
        for line in lines
        if line[2:20].strip() in ("once per job", "round 1", "each later round", "in all")
    }
    end = [line for line in shown.splitlines() if "at the end" in line]
    kept = int(end[0][30:42].replace(",", ""))
    each = sizes["each later round"]
    assert sizes["in all"] == sizes["once per job"] + sizes["round 1"] + 9 * each + kept


def test_an_experiment_that_would_fail_fails_here_with_all_details(kit, tmp_path):
    with pytest.raises(DataError, match="an example has 4 numbers"):
        told("check", kit, written(tmp_path, model={"name": "softmax", "inputs": 5, "outputs": 3}))
    with pytest.raises(DataError, match="has the label 2"):
        told("check", kit, written(tmp_path, model={"name": "softmax", "inputs": 4, "outputs": 2}))
    with pytest.raises(Refusal, match="min_batch_size = 32"):
        told("check", kit, written(tmp_path, batch_size=5))
    with pytest.raises(Refusal, match="'mlp' is not on this silo's allow-list"):
        told("check", kit, written(tmp_path, model={"name": "mlp", "inputs": 4, "outputs": 3}))


def test_a_secure_sum_is_rehearsed_without_masks(kit, tmp_path):
    shown = told("check", kit, written(tmp_path, privacy={"secure": True}))
    assert "The secure sum was left out here" in shown
    assert "this silo would take part" in shown


def test_sizes_that_are_left_out_are_shown(kit, tmp_path):
    path = written(tmp_path, model={"name": "softmax"})
    done = CliRunner().invoke(app, ["silos", "check", str(kit), str(path)])
    assert "Here they are: inputs = 4, outputs = 3" in done.output
    assert "needs inputs and outputs in [model]" in str(done.exception)


@pytest.mark.parametrize("what", ["nothing", "notes.txt", "records.csv", "two"])
def test_data_that_cannot_be_used_is_refused_when_the_silo_is_set_up(tmp_path, what):
    folder, kit = tmp_path / "records", make_kit(tmp_path / "north")
    folder.mkdir()
    if what in ("notes.txt", "records.csv"):
        (folder / what).write_bytes(b"\xff\xfe not a table")
    if what == "two":
        for name in ("a", "b"):
            np.savez(folder / f"{name}.npz", inputs=np.zeros((3, 2)), targets=np.zeros(3, int))
    with pytest.raises(DataError):
        told("site", kit, "--data", folder, "--allow", "softmax")
    assert not (kit / "local" / "fafed.toml").exists()


def test_a_wrong_table_file_is_named(tmp_path):
    write_csv(tmp_path / "records")
    kit, file = make_kit(tmp_path / "north"), tmp_path / "table.toml"
    for text, words in {"inputs = 3": "names each once", "inputs = ": "cannot be read"}.items():
        file.write_text(text)
        with pytest.raises(ConfigError, match=words):
            told("site", kit, "--data", tmp_path / "records", "--allow", "softmax", "--table", file)


def test_the_plan_of_a_private_run_on_this_silo(kit, tmp_path):
    pytest.importorskip("dp_accounting")
    noisy = {"level": "example", "noise": 2.0, "clip": 1.0, "delta": 1e-5, "secure": True}
    path = written(tmp_path, rounds=4, privacy=noisy)
    shown = told("check", kit, path)
    assert "Epsilon of this silo's rows in the run, at delta = 1e-05:" in shown
    once, opening = Released(32 / 100, 2.0, 2), Released(40 / 100, 2.0, 1)
    for round in range(1, 5):
        spent = epsilon_of({once: 3 * round, opening: 1}, 1e-5)
        assert f"  after round {round:<6} {spent:.3f}" in shown
    assert "Other runs have spent 0.000 at max_delta = 1e-05." in shown
    assert "max_epsilon = inf for all runs together" in shown
    assert not (kit / "fafed").exists()
    file = kit / "local" / "fafed.toml"
    Ledger(kit / "fafed").path.parent.mkdir()
    Ledger(kit / "fafed").add("before", Counter({once: 3}), 1e-5, 1e9, Limits())
    file.write_text(file.read_text() + "max_epsilon = 20.0\n")
    assert f"have spent {epsilon_of({once: 3}, 1e-5):.3f}" in told("check", kit, path)
    file.write_text(file.read_text().replace("20.0", "3.0"))
    with pytest.raises(Refusal, match=r"would spend epsilon = .* max_epsilon = 3"):
        told("check", kit, path)


def test_a_kit_is_set_up_again_and_keeps_what_was_added_to_its_file(kit, tmp_path):
    own = kit / "local" / "fafed.toml"
    with own.open("a") as file:
        file.write("min_rows = 20\n")
    before = own.read_text()
    (kit / "local" / "comm_config.json").unlink()  # as an older fafed has left it
    told("site", kit)
    assert own.read_text() == before
    assert (kit / "local" / "comm_config.json").exists()
    shown = told("site", kit, "--data", tmp_path / "records", "--allow", "mlp", *rules(tmp_path))
    assert "fafed.toml.old now" in shown
    assert own.with_suffix(".toml.old").read_text() == before
    assert Site.read(own).allow == ["mlp"]


def rules(tmp_path):
    return "--table", tmp_path / "table.toml"


def test_a_kit_without_a_file_needs_options(tmp_path):
    fresh = make_kit(tmp_path / "fresh")
    with pytest.raises(ConfigError, match="give --allow"):
        told("site", fresh)
    with pytest.raises(ConfigError, match="give --runs"):
        told("server", fresh)
