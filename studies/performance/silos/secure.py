"""Seconds of a round with secure aggregation against the same round in the open.

    python studies/performance/silos/secure.py [--flare] [--passes 3] [--large 5000000]

FedAvg on a linear model, one step on one example, so the computation is next to nothing. Silos are
workers in this process, one after another: 3, 10 and 20 of them at 26,620 parameters, and 3 at a
larger model. With --flare, 3 silos are also processes on loopback with mutual TLS. Open and secure
rounds take turns, and the median of the passes is printed. The first round of a run is left out.
In process, silos do not work at the same time, so their seconds add up: with silos on machines of
their own a round takes less. Needs fafed[nvflare,privacy].
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from overhead import linear  # noqa: E402

from fafed.core.records import Record  # noqa: E402
from fafed.experiments.config import Experiment  # noqa: E402
from fafed.experiments.rundir import RunDir  # noqa: E402
from fafed.silos.messages import Message  # noqa: E402
from fafed.silos.serve import serve  # noqa: E402
from fafed.silos.server import FederationConfig  # noqa: E402
from fafed.silos.site import Kit, Site  # noqa: E402
from fafed.silos.worker import Worker  # noqa: E402

SMALL = 26_620
PEM = serialization.Encoding.PEM


class InProcess:
    """Carries messages to workers in this process."""

    def __init__(self, workers: dict[str, Worker]) -> None:
        self.workers = workers

    def present(self) -> list[str]:
        return list(self.workers)

    def ask(
        self, requests: Mapping[str, Message], seconds: float, limit: int
    ) -> Iterator[tuple[str, Message | None]]:
        for silo, request in requests.items():
            yield silo, self.workers[silo].handle(request)


def certificate(name: str, key: ed25519.Ed25519PrivateKey, by: ed25519.Ed25519PrivateKey) -> bytes:
    now = datetime.now(UTC)
    subject, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, "project")
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )
    return made.sign(by, None).public_bytes(PEM)


def workers(folder: Path, silos: int, experiment: Experiment) -> dict[str, Worker]:
    authority = ed25519.Ed25519PrivateKey.generate()
    names = [f"silo-{i + 1}" for i in range(silos)]
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    found = {}
    for name in names:
        own = folder / name
        own.mkdir(parents=True)
        kit = Kit(own / "client.key", own / "client.crt", own / "rootCA.pem")
        key = ed25519.Ed25519PrivateKey.generate()
        kit.key.write_bytes(key.private_bytes(PEM, *form))
        kit.certificate.write_bytes(certificate(name, key, authority))
        kit.authority.write_bytes(certificate("project", authority, authority))
        allow = [experiment.model.name, str(experiment.data.function)]
        content = {"folder": own, "allow": allow, "data": {"share": True}}
        site = Site.model_validate(content | {"secure": {"silos": names}})
        found[name] = Worker(name, site, kit)
    return found


def in_process(experiment: Experiment, silos: int, folder: Path) -> float:
    made = workers(folder / "silos", silos, experiment)
    place = RunDir(folder / "run")
    config = FederationConfig.with_defaults(list(made))
    serve(experiment, place, InProcess(made), config)
    return seconds(place.records())


def over_flare(experiment: Experiment, silos: int, folder: Path) -> float:
    from fafed.silos.transports.nvflare.try_out import attempt

    attempt([experiment], silos, folder)
    return seconds(RunDir.for_experiment(experiment, folder).records())


def seconds(records: list[Record]) -> float:
    """Of one round; the first one also prepares."""
    return (records[-1].seconds - records[0].seconds) / (len(records) - 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--large", type=int, default=5_000_000)
    parser.add_argument("--flare", action="store_true", help="three silos as processes, too")
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    cases = [("in process", in_process, n, SMALL) for n in (3, 10, 20)]
    cases.append(("in process", in_process, 3, chosen.large))
    if chosen.flare:
        cases += [("on FLARE", over_flare, 3, size) for size in (SMALL, chosen.large)]
    for where, timed, silos, parameters in cases:
        rounds = 11 if parameters < 1e6 else 4
        plain = linear(parameters // 10 - 1, rounds, silos)
        secure = plain.changed(privacy={"secure": True})
        found: dict[str, list[float]] = {"open": [], "secure": []}
        for _ in range(chosen.passes):
            for name, experiment in (("open", plain), ("secure", secure)):
                with tempfile.TemporaryDirectory() as folder:
                    found[name].append(timed(experiment, silos, Path(folder)))
        a, b = (statistics.median(found[name]) for name in ("open", "secure"))
        print(
            f"{silos:3} silos {where}, {parameters:,} parameters: open {a:.3f} s, secure {b:.3f} s "
            f"a round; {b - a:.3f} s more, {b / a:.2f} times",
            flush=True,
        )


if __name__ == "__main__":
    main()
