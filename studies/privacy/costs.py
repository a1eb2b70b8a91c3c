"""The parts of docs/privacy.md about the time that secure rounds and private steps take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from studies.markdown import replace_part, table
from studies.privacy.measurement import ROOT
from studies.privacy.page import PAGE

SECURE = ROOT / "studies" / "performance" / "silos" / "secure.json"
STEP = ROOT / "studies" / "privacy" / "step.json"
SECURE_COMMAND = "python studies/performance/silos/secure.py"
STEP_COMMAND = "python -m studies.privacy.step"
LARGE = 10**6  # parameters of a model for which bytes count more than the protocol


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def write() -> None:
    page = PAGE.read_text("utf-8")
    PAGE.write_text(render(read(SECURE), read(STEP), page), "utf-8")


def render(secure: dict[str, Any], step: dict[str, Any], page: str) -> str:
    page = replace_part(page, "secure-cost", _secure(secure))
    return replace_part(page, "step-cost", _step(step))


def _secure(results: dict[str, Any]) -> str:
    if not results:
        return f"Not measured yet: `{SECURE_COMMAND}`.\n"
    head = ["silos", "where", "parameters", "open", "secure", "times", "a machine each: open"]
    head += ["secure", "times", "kB open", "kB secure", "MB of a silo, open", "secure"]
    rows, wrong = [], []
    for one in results["cases"].values():
        a, b = both = [one[name]["seconds"] for name in ("open", "secure")]
        shared = [one[name]["together"] for name in ("open", "secure") if "together" in one[name]]
        sizes = [f"{one[name]['kilobytes']:,.0f}" for name in ("open", "secure")]
        name = [str(one["silos"]), one["where"], f"{one['parameters']:,}"]
        memory = [_megabytes(one[name].get("memory", {})) for name in ("open", "secure")]
        rows.append([*name, *_compared(both), *_compared(shared), *sizes, *memory])
        a, b = shared or both
        most = 2 * a if one["parameters"] >= LARGE else 0.3 + 1.3 * a
        if b > most:
            wrong.append(f"{name[0]} silos {name[1]} at {name[2]} parameters")
    verdict = "All cases meet this." if not wrong else f"Not met: {'; '.join(wrong)}."
    return (
        f"Seconds of a round, and kB that a silo and the server send each other in it, on "
        f"{results['machine']['processor']}. The model is linear and the computation next to "
        "nothing, so this is the cost of the messages. In process, silos work one after another, "
        "and their seconds add up. If each had a machine of its own, only the slowest silo would "
        "count in each step: these seconds are measured in the same rounds. On FLARE silos are "
        "processes on one machine, with mutual TLS. "
        "There the peak memory of a silo's process is measured, too: what is private to it / with "
        "the pages of mapped files, which the system takes back when it needs them. "
        "10 and 20 silos at 50 million parameters were not measured: they need more than one "
        f"machine. `{SECURE_COMMAND}` repeats it.\n\n"
        f"{table(head, rows, right=True)}\n"
        "The aim: at most 0.3 s and 1.3 times an open round for the small model, and at most 2 "
        f"times for the large one, with a machine for each silo. {verdict}\n"
    )


def _compared(seconds: list[float]) -> list[str]:
    if not seconds:
        return ["·"] * 3
    a, b = seconds
    return [f"{a:.3f} s", f"{b:.3f} s", f"{b / a:.2f}"]


def _megabytes(memory: dict[str, int]) -> str:
    if not memory:
        return "·"
    return f"{memory['private'] / 1e6:,.0f} / {memory['resident'] / 1e6:,.0f}"


def _step(results: dict[str, Any]) -> str:
    if not results:
        return f"Not measured yet: `{STEP_COMMAND}`.\n"
    head = ["local step of FedAvg", "back end", "milliseconds", "times"]
    times = {one["way"]: one["milliseconds"] for one in results["ways"]}
    plain = times[results["default"]]
    rows = [
        [
            one["what"],
            one["way"],
            f"{one['milliseconds']:.1f}",
            f"{one['milliseconds'] / plain:.2f}",
        ]
        for one in results["ways"]
    ]
    return (
        f"{results['model']}, b = {results['batch_size']}, {results['threads']} thread, on "
        f"{results['machine']['processor']}: the median of {results['passes']} passes in which "
        f"the ways take turns. `{STEP_COMMAND}` repeats it.\n\n{table(head, rows, right=True)}"
    )
