"""What secure aggregation costs: seconds and bytes of a round, against the same round in the open.

    python studies/performance/silos/secure.py [--only small,large,flare,flare-large] [--passes 3]
    python studies/performance/silos/secure.py --render-only

FedAvg on a linear model, one step on one example, so the computation is next to nothing. Silos are
workers in this process, one after another: 3, 10 and 20 of them at 26,620 parameters (`small`), and
3 at 50 million (`large`). In `flare` and `flare-large`, 3 silos are processes on loopback with
mutual TLS. Open and secure rounds take turns, and the median of the passes counts. The first round
of a run is left out. In process, silos do not work at the same time, so their seconds add up. For
silos with a machine each, only the slowest one counts in each step. Both are measured. 10 and 20
silos at 50 million parameters are left out: in one process their seconds would add up to minutes,
and as processes they need more than 24 GiB.

Over FLARE each silo's peak memory is measured, too: what is private to its process, and what is
resident, which has the pages of mapped files in it (see large.py).

The results are in secure.json, each case with the options that it was measured with. They are
merged and written after each case, so groups can be measured one by one. The tables of
docs/privacy.md and docs/performance.md are written from it. `masks` is the time of the masks of a
round and of nothing else, on one thread: each silo makes one for itself and one for each other
silo, and the server makes those of the silos themselves again. A secure round has at least this
work and that of the open round.

On two idle cores: small about 1 minute, large 2, both on FLARE 7. large needs 4 GiB, flare-large 10
GiB. Needs fafed[nvflare,privacy].
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT)]

from large import federated  # noqa: E402
from overhead import linear  # noqa: E402

from fafed.experiments.config import Experiment  # noqa: E402
from fafed.experiments.rundir import RunDir  # noqa: E402
from fafed.privacy.secure_sum import masks  # noqa: E402
from fafed.silos import messages  # noqa: E402
from fafed.silos.messages import Message  # noqa: E402
from fafed.silos.serve import serve  # noqa: E402
from fafed.silos.server import FederationConfig  # noqa: E402
from fafed.silos.site import Kit, Site  # noqa: E402
from fafed.silos.worker import Worker  # noqa: E402
from studies.performance import document, machine  # noqa: E402
from studies.performance import results as page_results  # noqa: E402
from studies.privacy import costs  # noqa: E402

SMALL, LARGE = 26_620, 50_000_000
OUTSIDE = ("hello", "final")  # kinds of messages between rounds
PEM = serialization.Encoding.PEM
Peak = dict[str, int]  # bytes of the silo's process that takes most; {} if silos share a process


class Federated(NamedTuple):
    """A finished run."""

    place: RunDir
    peak: Peak
    spared: Mapping[int, float] = {}  # round -> seconds; {} if silos work at the same time


class InProcess:
    """Carries messages to workers in this process. `spared` has the seconds of each round in which
    no silo would work if all worked at the same time."""

    def __init__(self, workers: dict[str, Worker]) -> None:
        self.workers = workers
        self.spared: Counter[int] = Counter()

    def present(self) -> list[str]:
        return list(self.workers)

    def ask(
        self, requests: Mapping[str, Message], seconds: float, limit: int
    ) -> Iterator[tuple[str, Message | None]]:
        took, head = [0.0], {}
        for silo, request in requests.items():
            head = messages.glance(request.head)
            began = time.perf_counter()
            answer = self.workers[silo].handle(request)
            took.append(time.perf_counter() - began)
            yield silo, answer
        if head and head["kind"] not in OUTSIDE:
            self.spared[head["round"]] += sum(took) - max(took)


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


def in_process(experiment: Experiment, silos: int, folder: Path) -> Federated:
    made = workers(folder / "silos", silos, experiment)
    place = RunDir(folder / "run")
    config = FederationConfig.with_defaults(list(made))
    wire = InProcess(made)
    serve(experiment, place, wire, config)
    return Federated(place, {}, wire.spared)


def over_flare(experiment: Experiment, silos: int, folder: Path) -> Federated:
    place, peaks = federated(experiment, silos, folder)
    own = [peaks[f"silo-{i + 1} job"] for i in range(silos)]
    names = {"private": "RssAnon", "resident": "VmHWM"}
    peak = {name: max(one[field] for one in own) for name, field in names.items()}
    return Federated(place, peak)


def seconds(place: RunDir) -> float:
    """Of one round; the first one also prepares."""
    records = place.records()
    return (records[-1].seconds - records[0].seconds) / (len(records) - 1)


def together(found: Federated) -> float:
    """Seconds of one round if all silos worked at the same time."""
    rounds = range(2, len(found.place.records()) + 1)
    return seconds(found.place) - sum(found.spared[r] for r in rounds) / len(rounds)


def kilobytes(place: RunDir, silos: int) -> float:
    """That one silo and the server send each other in one round, without the first."""
    lines = (place.path / "audit.jsonl").read_text("utf-8").splitlines()
    told = [json.loads(line) for line in lines]
    last = max(one["round"] for one in told)
    rounds = [one for one in told if one["round"] > 1 and one["kind"] not in ("final", "kept")]
    return sum(one["bytes"] for one in rounds) / (last - 1) / silos / 1000


def masks_alone(silos: int, parameters: int) -> float:
    """Seconds that one thread needs for all masks of a round."""
    vector = np.zeros(parameters, masks.DTYPES[64])
    keys = [(1, os.urandom(32)) for _ in range(silos)]
    took = []
    for _ in range(5 if parameters < 1e6 else 2):
        began = time.perf_counter()
        masks.apply(vector, [parameters], keys)
        took.append(time.perf_counter() - began)
    return min(took) * (silos + 1)  # the silos and the server


CASES: dict[str, list[tuple[str, Any, int, int]]] = {
    "small": [("in process", in_process, n, SMALL) for n in (3, 10, 20)],
    "large": [("in process", in_process, 3, LARGE)],
    "flare": [("on FLARE", over_flare, 3, SMALL)],
    "flare-large": [("on FLARE", over_flare, 3, LARGE)],
}


def measured(timed: Any, silos: int, parameters: int, passes: int) -> dict[str, Any]:
    rounds = 11 if parameters < 1e6 else 4
    plain = linear(parameters // 10 - 1, rounds, silos)
    ways = {"open": plain, "secure": plain.changed(privacy={"secure": True})}
    found: dict[str, list[float]] = {name: [] for name in ways}
    shared: dict[str, list[float]] = {name: [] for name in ways}
    sizes: dict[str, float] = {}
    peaks: dict[str, list[Peak]] = {name: [] for name in ways}
    for _ in range(passes):
        for name, experiment in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                one = timed(experiment, silos, Path(folder))
                peaks[name].append(one.peak)
                found[name].append(seconds(one.place))
                if one.spared:
                    shared[name].append(together(one))
                sizes[name] = kilobytes(one.place, silos)
    return {
        name: {
            "seconds": statistics.median(own),
            "passes": own,
            **({"together": statistics.median(shared[name])} if shared[name] else {}),
            "kilobytes": sizes[name],
            "memory": {kind: max(one[kind] for one in peaks[name]) for kind in peaks[name][0]},
        }
        for name, own in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--large", type=int, default=LARGE, help="parameters of the large model")
    parser.add_argument("--output", type=Path, default=costs.SECURE)
    parser.add_argument("--render-only", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    for group in () if chosen.render_only else chosen.only.split(","):
        for where, timed, silos, size in CASES[group]:
            parameters = chosen.large if size == LARGE else size
            began = time.perf_counter()
            one = measured(timed, silos, parameters, chosen.passes)
            results = costs.read(chosen.output) or {"cases": {}}
            results["machine"] = machine.describe(os.cpu_count() or 1)
            results["cases"][f"{where}, {silos}, {parameters}"] = {
                "where": where,
                "silos": silos,
                "parameters": parameters,
                "masks": masks_alone(silos, parameters),
                **one,
            }
            chosen.output.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
            for kind in ("seconds", "together"):
                if kind in one["open"]:
                    a, b = one["open"][kind], one["secure"][kind]
                    print(
                        f"{silos:3} silos {where}, {parameters:,} parameters, {kind}: open "
                        f"{a:.3f}, secure {b:.3f} a round; {b - a:.3f} more, {b / a:.2f} times",
                        flush=True,
                    )
            print(f"    {time.perf_counter() - began:.0f} s in all", flush=True)
    if chosen.output == costs.SECURE:
        costs.write()
        document.write(page_results.DEFAULT)


if __name__ == "__main__":
    main()
