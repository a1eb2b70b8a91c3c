"""Silos that join and leave a project: entries of the project file, and the kits that follow."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from fafed.cli import app
from fafed.errors import ConfigError

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from cryptography import x509

from fafed.silos.transports.nvflare.local_federation import project
from fafed.silos.transports.nvflare.members import add, remove


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "project.yml"
    path.write_text(project(["north", "south"], host="fl.example.org", port=8002))
    return path


def names(file):
    return [(one["name"], one["type"]) for one in yaml.safe_load(file.read_text())["participants"]]


def test_a_silo_joins_and_another_leaves(file):
    before = file.read_text()
    for command in (["add", "east"], ["remove", "east"]):
        done = CliRunner().invoke(app, ["silos", *command, "--project", str(file)])
        assert done.exit_code == 0, done.output
        if command[0] == "add":
            assert "nvflare provision" in done.output
            assert ("east", "client") in names(file)
            assert yaml.safe_load(file.read_text()) == yaml.safe_load(
                project(["north", "south", "east"], host="fl.example.org", port=8002)
            )
    assert "disable-client east" in done.output
    assert file.read_text() == before


@pytest.mark.parametrize("name", ["north", "fl.example.org", "admin", "a.b", "admin@fafed.org"])
def test_names_that_cannot_join(file, name):
    with pytest.raises(ConfigError):
        add(file, name)
    assert len(names(file)) == 4


def test_what_is_not_there_is_named(file, tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'north'"):
        remove(file, "nort")
    (tmp_path / "other.yml").write_text("silos: 3")
    for wrong in ("missing.yml", "other.yml"):
        with pytest.raises(ConfigError, match="is not a project file"):
            remove(tmp_path / wrong, "north")
    with pytest.raises(ConfigError, match="there is no silo 'admin@fafed"):
        remove(file, "admin@fafed.org")


@pytest.mark.slow
def test_a_new_kit_has_the_same_authority_as_the_old_ones(file, tmp_path):
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "."]

    def made(folder, name):
        again = ["--force"] if folder else []  # it asks on a terminal, and refuses without one
        subprocess.run([*command, *again], cwd=tmp_path, check=True, capture_output=True)
        startup = tmp_path / "fafed" / f"prod_0{folder}" / name / "startup"
        root, own = (startup / file for file in ("rootCA.pem", "client.crt"))
        return root.read_bytes(), x509.load_pem_x509_certificate(own.read_bytes())

    root, _ = made(0, "north")
    add(file, "east")
    again, own = made(1, "east")
    assert again == root
    own.verify_directly_issued_by(x509.load_pem_x509_certificate(root))
