"""Certificates end: a warning comes before, and a kit gets new ones with its settings kept."""

from __future__ import annotations

import pytest
from kits import make_kit
from typer.testing import CliRunner

from fafed.cli import app
from fafed.errors import ConfigError

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'fafed[nvflare]'")

from fafed.silos.transports.nvflare.certificates import ends, renew, warning


@pytest.mark.parametrize(
    ("days", "words"),
    [(360, ""), (30, ""), (29, "ends in 29 days"), (0, "ends in 0 days"), (-2, "has ended")],
)
def test_a_warning_comes_thirty_days_before(tmp_path, days, words):
    told = warning(make_kit(tmp_path / "north", days))
    assert words in told
    assert bool(told) == bool(words)


def test_a_kit_gets_new_certificates_and_keeps_its_settings(tmp_path):
    old, new = make_kit(tmp_path / "north", 5), make_kit(tmp_path / "new" / "north", 360)
    (old / "local" / "fafed.toml").write_text("mine")
    end = ends(new)
    done = CliRunner().invoke(app, ["silos", "renew", str(old), str(new)])
    assert done.exit_code == 0, done.output
    assert ends(old) == end
    assert (old / "local" / "fafed.toml").read_text() == "mine"
    assert not warning(old)
    assert not (old / "startup" / "client.crt").stat().st_mode & 0o077
    assert len(list(old.glob("startup.until-*"))) == 1


def test_only_a_newer_kit_of_the_same_member_will_do(tmp_path):
    kit = make_kit(tmp_path / "north", 100)
    with pytest.raises(ConfigError, match="is the kit of 'south'"):
        renew(kit, make_kit(tmp_path / "south"))
    with pytest.raises(ConfigError, match="move the folder `state`"):
        renew(kit, make_kit(tmp_path / "new" / "north", 50))
    with pytest.raises(ConfigError, match="is not a startup kit"):
        renew(kit, tmp_path)
