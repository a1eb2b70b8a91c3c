"""docs/silos.md, followed to the letter: three institutions, each with its own folder of data."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from guide import ADMIN, GUIDE, ROOT, Machine, commands, files, section
from kits import make_kit
from silo_tools import final

import fafed
from fafed.data import Table, from_file
from fafed.errors import FAULTS
from fafed.experiments.config import Experiment
from fafed.experiments.execute import execute
from fafed.experiments.rundir import RunDir
from fafed.report.watch import serving
from fafed.silos.site import Site

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from nvflare.fuel.flare_api.flare_api import new_secure_session

from fafed.silos.transports.nvflare.local_federation import Member, free_port

RECORDS = ROOT / "examples" / "heart-disease" / "make_data.py"
HOSPITALS = {"north": "cleveland", "south": "hungary", "west": "switzerland"}


EPSILON = re.compile(r": (\S+) after 20 rounds for west\. .*?Then it is (\S+)\.\)", re.DOTALL)


def hostile(kit: Path, job: Path) -> None:
    """Even the administrator can neither send code to a silo nor look into its files."""
    session = new_secure_session(kit.name, str(kit))
    try:
        number = session.submit_job(str(job))
        end = time.monotonic() + 60
        while not (told := session.get_job_meta(number)).get("job_deploy_detail"):
            assert time.monotonic() < end
            time.sleep(0.2)
        refused = [x for x in told["job_deploy_detail"] if "BYOC not permitted" in x]
        assert len(refused) == 3
        for question in (
            lambda: session.cat_target("north", None, "log.txt"),
            lambda: session.ls_target("north", "-l", "local"),
            lambda: session.get_working_directory("north"),
            lambda: session.get_client_env(["north"]),
        ):
            try:
                answer = str(question())
            except Exception as error:
                answer = str(error)
            assert "not authorized" in answer
    finally:
        session.close()


def make_records(folder: Path) -> None:
    subprocess.run([sys.executable, str(RECORDS), str(folder)], check=True, timeout=60)


def test_the_guide_prints_the_rules_of_the_example():
    (title,) = [t for t in files("The coordinator writes") if t == "table.toml"]
    printed = files("The coordinator writes")[title]
    assert printed == (RECORDS.parent / "table.toml").read_text("utf-8")


def test_the_printed_rows_fit_the_printed_rules(tmp_path):
    (rows,) = [text for kind, text in section("Each institution says") if kind == "csv"]
    (tmp_path / "records.csv").write_text(rows, "utf-8")
    rules = Table.from_dict(tomllib.loads(files("The coordinator writes")["table.toml"]))
    inputs, targets = from_file(tmp_path / "records.csv", rules)
    experiment = tomllib.loads(files("The coordinator writes")["hospitals.toml"])
    assert inputs.shape == (2, experiment["model"]["inputs"])
    assert inputs[1, rules.columns().index("chol")] == 0  # a gap becomes the centre
    assert targets.tolist() == [0, 1]


def test_what_the_page_adds_to_a_file_is_accepted():
    """The tables that no test over processes adds, or not in these words."""
    silo: dict[str, object] = {}
    for step in ("Each institution says", "The same, private", "Slow and broken links"):
        (added,) = [text for _, text in section(step) if "# added to" in text]
        silo |= tomllib.loads(added)
    own = {"folder": "f", "allow": ["softmax"], "data": {"folder": "d"}}
    site = Site.model_validate(own | silo)
    assert site.evaluate.share == 0.2
    assert site.link.rate == 1_000_000
    authority, pins, on_flower = [text for kind, text in section("Secure agg") if kind == "toml"]
    assert tomllib.loads(authority) == {"secure": silo["secure"]}
    for text in (authority, pins, on_flower):
        assert Site.model_validate(own | tomllib.loads(text)).secure != Site(**own).secure
    (shared,) = [text for kind, text in section("Shared norm") if kind == "toml"]
    content = tomllib.loads(files("The coordinator writes")["hospitals.toml"])
    changed = Experiment.from_dict(content | tomllib.loads(shared) | {"name": "hospitals"})
    assert changed.data.normalise == "shared"


def test_the_promised_epsilons_are_those_of_the_check(tmp_path):
    """West with the rows that `[evaluate]` holds out, and without."""
    pytest.importorskip("dp_accounting")
    make_records(tmp_path / "made")
    records = tmp_path / "records"
    records.mkdir()
    shutil.move(tmp_path / "made" / f"{HOSPITALS['west']}.csv", records / "records.csv")
    shared = files("The coordinator writes") | files("The same, private")
    for file, text in shared.items():
        (tmp_path / file).write_text(text, "utf-8")
    make_kit(tmp_path / "west")
    machine = Machine(tmp_path, **{"/srv/records": str(records), "north": "west"})
    machine.type(commands("Each institution says")[0])
    own = tmp_path / "west" / "local" / "fafed.toml"
    own.write_text(own.read_text("utf-8") + '[secure]\nsilos = ["north", "south", "west"]\n')
    (check, _) = commands("The same, private")
    told = [machine.type(check)]
    add(machine, "west", "Each institution says")
    told.insert(0, machine.type(check))
    for promised, words in zip(
        EPSILON.search(GUIDE.read_text("utf-8")).groups(), told, strict=True
    ):
        (planned,) = re.findall(r"after round 20 +(\S+)", words)
        assert float(planned) == pytest.approx(float(promised), abs=0.05)


@pytest.mark.slow
def test_three_institutions(tmp_path):
    made, shared = tmp_path / "made", files("The coordinator writes") | files("The same, private")
    make_records(made)
    here = {"fl.example.org": "localhost", "--silos": f"--port {free_port()} --silos"}
    coordinator = Machine(tmp_path / "coordinator", **here)
    for line in commands("The coordinator makes"):
        coordinator.type(line)
    del coordinator.here["--silos"]
    server = Machine(tmp_path / "server", **here)
    machines = {}
    for name, hospital in HOSPITALS.items():
        records = tmp_path / name / "records"
        records.mkdir(parents=True)
        shutil.move(made / f"{hospital}.csv", records / "records.csv")
        machines[name] = Machine(tmp_path / name, **{"/srv/records": str(records), "north": name})
    kits = coordinator.folder / "fafed" / "prod_00"
    for name, machine in {"localhost": server, **machines}.items():
        shutil.copytree(kits / name, machine.folder / name)
        for file, text in shared.items():
            (machine.folder / file).write_text(text, "utf-8")
    for file, text in shared.items():
        (coordinator.folder / file).write_text(text, "utf-8")
    shutil.copy(made / "test.csv", server.folder / "test.csv")
    shutil.copytree(kits / ADMIN, coordinator.folder / ADMIN)

    for name, machine in machines.items():
        first, *more = commands("Each institution says")
        machine.type(first)
        add(machine, name, "Each institution says")
        for line in more:
            assert "this silo would take part" in machine.type(line)
    for line in commands("The server says"):
        server.type(line)

    found = Experiment.from_dict(tomllib.loads(shared["hospitals.toml"]) | {"name": "hospitals"})
    members = [Member(m.folder / n) for n, m in {"localhost": server, **machines}.items()]
    run, watch, report, export, submit = commands("Run\n")
    start, status = commands("Start\n")
    try:
        *scripts, west = members
        for member in scripts:
            Machine(member.kit).type(start)
        west.process = by_service_manager(west.kit)
        wait_for(HOSPITALS, lambda: coordinator.type(status))
        with_bad_data(coordinator, machines["west"], run)
        with serving([server.folder / "runs"]):
            assert "finished" in coordinator.type(run)
        check_run(found, tmp_path, server, machines)
        privately(coordinator, server, machines)
        server.type(report)
        assert (server.folder / "report").exists()
        coordinator.type(export)
        assert not list((coordinator.folder / "jobs").rglob("*.py"))  # no code travels
        coordinator.type(submit)
        custom = coordinator.folder / "jobs" / "hospitals" / "app" / "custom"
        custom.mkdir()
        (custom / "evil.py").write_text("raise SystemExit")
        hostile(coordinator.folder / ADMIN, coordinator.folder / "jobs" / "hospitals")
        for name, machine in machines.items():
            whole, noted = commands("Audit")
            words = machine.type(whole, at=f"{name}/fafed")
            machine.type(noted.replace("HASH", words.split()[-1]), at=f"{name}/fafed")
        (removal,) = [line for line in commands("Remove a silo") if "disable-client" in line]
        coordinator.type(removal)
    finally:
        for member in members:
            (member.kit / "shutdown.fl").touch()  # what stop_fl.sh does
        for member in members:
            member.kill()
    assert watch == "fafed watch runs"
    leaving = (server.folder / "runs").rglob("audit.jsonl")
    assert not any(str(tmp_path / name) in p.read_text() for p in leaving for name in HOSPITALS)


def by_service_manager(kit: Path) -> subprocess.Popen[bytes]:
    """As systemd starts it: with what is in the unit, and nothing of this test's environment but
    where the sources are."""
    (text,) = [text for kind, text in section("Start\n") if kind == "ini"]
    unit = configparser.RawConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    service = unit["Service"]
    name, _, path = service["Environment"].partition("=")
    environment = {name: path.replace("/srv/fafed/venv/bin", str(Path(sys.executable).parent))}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return subprocess.Popen(
        shlex.split(service["ExecStart"].replace("/srv/fafed/north", str(kit))),
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        umask=int(service["UMask"], 8),
    )


def wait_for(names: Iterable[str], look: Callable[[], str]) -> None:
    """Until all names are at the beginning of a line. Before the server is there, `look` fails."""
    end = time.monotonic() + 90
    while True:
        try:
            told = look()
        except AssertionError as cause:
            told = str(cause)
        if not {*names} - {line.partition(" ")[0] for line in told.splitlines()}:
            return
        assert time.monotonic() < end, told
        time.sleep(1)


def with_bad_data(coordinator: Machine, west: Machine, run: str) -> None:
    """The coordinator learns the kind of the fault after one job, and nothing about the rows."""
    records = west.folder / "records" / "records.csv"
    good = records.read_text("utf-8")
    records.write_text(good.replace(",male,", ",man,", 1), "utf-8")
    words = coordinator.fails(run)
    records.write_text(good, "utf-8")
    assert f"west: {FAULTS['categories']}" in words
    assert "man" not in words.split()
    session = new_secure_session(ADMIN, str(coordinator.folder / ADMIN))
    try:
        assert len(session.list_jobs()) == 1
    finally:
        session.close()


def add(machine: Machine, name: str, step: str) -> None:
    """Add to a silo's file what the step adds to it."""
    (added,) = [text for _, text in section(step) if "# added to" in text]
    with (machine.folder / name / "local" / "fafed.toml").open("a") as file:
        file.write(added)


def privately(coordinator: Machine, server: Machine, machines: dict[str, Machine]) -> None:
    """Secure aggregation and differential privacy, without a restart of anything."""
    check, run = commands("The same, private")
    told = {}
    for name, machine in machines.items():
        add(machine, name, "The same, private")
        told[name] = machine.type(check)
        assert "this silo would take part" in told[name]
    promised = EPSILON.search(GUIDE.read_text("utf-8"))[1]
    (planned,) = re.findall(r"after round 20 +(\S+)", told["west"])
    assert float(planned) == pytest.approx(float(promised), abs=0.05)
    assert "finished" in coordinator.type(run)
    (place,) = (RunDir(path) for path in (server.folder / "runs" / "private").iterdir())
    last = place.records()[-1]
    assert last.diagnostics["epsilon"] == pytest.approx(float(planned), abs=1e-3)
    assert last.test["accuracy"] > 0.75
    lines = (place.path / "audit.jsonl").read_text("utf-8").splitlines()
    got = {line["kind"] for line in map(json.loads, lines) if line["direction"] == "received"}
    assert "masked" in got
    assert "answer" not in got  # of a silo alone


def check_run(found: Experiment, tmp_path: Path, server: Machine, machines) -> None:
    """The model is that of a simulation, everybody has it, and silos have evaluated it."""
    place = RunDir.for_experiment(found, server.folder / "runs")
    together = tmp_path / "together"
    together.mkdir()
    for name in HOSPITALS:
        shutil.copy(tmp_path / name / "records" / "records.csv", together / f"{name}.csv")
    rules = tomllib.loads((server.folder / "table.toml").read_text())
    data = {"folder": str(together), "table": rules, "client_test": 0.2}
    simulated = RunDir(tmp_path / "simulated")
    execute(found.changed(data=data, engine="loop", eval_every=found.rounds), simulated)
    torch.testing.assert_close(final(place), final(simulated), rtol=1e-5, atol=1e-6)
    last, there = place.records()[-1], simulated.records()[-1]
    assert last.test["accuracy"] > 0.75
    assert last.clients_test["accuracy"]["clients"] == len(HOSPITALS)
    assert last.clients_test["loss"]["mean"] == pytest.approx(
        there.clients_test["loss"]["mean"], rel=1e-4
    )
    wanted = fafed.load(place.path).state_dict()
    for name, machine in machines.items():
        (own,) = (machine.folder / name / "fafed" / "runs").glob("*/model.safetensors")
        got = fafed.load(own.parent).state_dict()
        assert all(torch.equal(wanted[key], leaf) for key, leaf in got.items())
