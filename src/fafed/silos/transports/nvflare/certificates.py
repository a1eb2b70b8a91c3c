"""When the certificates of a startup kit end, and how a kit gets new ones.

FLARE's root certificate lasts 360 days, and no other certificate lasts longer. After that nobody
can connect. `nvflare provision` with a new `state/` makes new kits. Only their folder `startup/` is
new to a member: `local/` has its own rules, and its folder has its states.
"""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from fafed import files
from fafed.errors import ConfigError
from fafed.silos.transports.nvflare.kit_files import close

SOON = 30  # days


def ends(kit: Path) -> datetime:
    """When the first certificate of the kit ends."""
    return min(_read(path).not_valid_after_utc for path in _paths(kit))


def warning(kit: Path, now: datetime | None = None) -> str:
    """What to say about certificates that have ended or end within 30 days; "" if none does."""
    end = ends(kit)
    days = (end - (now or datetime.now(UTC))).days
    if days >= SOON:
        return ""
    state = f"ends in {days} days" if days >= 0 else "has ended"
    return (
        f"the certificate of {kit.name} {state} ({end:%Y-%m-%d}): then nobody can connect. Make "
        "new kits and run `fafed silos renew` on every machine (docs/silos.md, Certificates)"
    )


def renew(kit: Path, new: Path) -> Path:
    """Give a kit the startup folder of a newer one of the same member. Return the old folder."""
    kit, new = kit.absolute(), new.absolute()
    old, other = (_name(one) for one in (kit, new))
    if old != other:
        raise ConfigError(
            f"{new} is the kit of {other!r}, and {kit} that of {old!r}: give the new kit of {old!r}"
        )
    if ends(new) <= ends(kit):
        raise ConfigError(
            f"the certificates of {new} end {ends(new):%Y-%m-%d}, not later than those of {kit}: "
            "move the folder `state` of the project aside before `nvflare provision`"
        )
    startup, fresh = kit / "startup", kit / "startup.new"
    before = kit / f"startup.until-{ends(kit):%Y-%m-%d}"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(new / "startup", fresh)
    close(fresh)
    files.sync_folder(fresh)
    startup.rename(before)
    fresh.rename(startup)
    files.sync_path(kit)
    return before


def _paths(kit: Path) -> list[Path]:
    startup = kit / "startup"
    found = sorted([*startup.glob("*.crt"), *startup.glob("*.pem")])
    if not found:
        raise ConfigError(
            f"{kit} is not a startup kit (it has no certificates in startup): give the folder that "
            "`nvflare provision` made"
        )
    return found


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as cause:
        raise ConfigError(f"{path} is not a certificate: {cause}; restore the kit") from cause


def _name(kit: Path) -> str:
    """The member that the kit belongs to."""
    own = next(path for path in _paths(kit) if path.name != "rootCA.pem")
    return str(_read(own).subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
