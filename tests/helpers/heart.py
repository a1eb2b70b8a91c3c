"""Files in the form of the heart disease data, with all its rows and made-up numbers."""

from __future__ import annotations

import numpy as np

from fafed.data.datasets import cache
from fafed.data.datasets.heart_disease import COLUMNS, HOSPITALS, SHA256


def files() -> dict[str, bytes]:
    """Cleveland writes 63.0, the others 63. Switzerland has no cholesterol, and all have gaps."""
    r = np.random.default_rng(0)
    found = {}
    for hospital, (name, patients) in HOSPITALS.items():
        lines = []
        for _ in range(patients):
            sick = int(r.integers(0, 5))
            row = [int(r.integers(30, 77)), int(r.integers(0, 2)), int(r.integers(1, 5))]
            row += [int(r.integers(90, 200)), int(r.integers(120, 400)), int(r.integers(0, 2))]
            row += [int(r.integers(0, 3)), int(r.integers(70, 200)) - 8 * sick]
            row += [int(r.random() < 0.2 + 0.1 * sick), 0.5 * sick, 2, 0, 3, sick]
            fields = [f"{v:.1f}" if hospital == "cleveland" else f"{v:g}" for v in row]
            if hospital == "switzerland":
                fields[4] = "0"
            for gap in (3, 7, 8, 9, 10, 11, 12):
                if r.random() < 0.2:
                    fields[gap] = "?"
            lines.append(",".join([*fields[:-1], str(sick)]))
        found[name] = ("\n".join(lines) + "\n").encode()
    assert all(len(line.split(b",")) == len(COLUMNS) for line in found[name].split())
    return found


def accept(monkeypatch, written: dict[str, bytes]) -> None:
    """Make these the files that fafed knows the checksums of."""
    for name, content in written.items():
        monkeypatch.setitem(SHA256, name, cache.sha256_of(content))
