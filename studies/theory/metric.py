"""The measure M_t of FAFED's theory and its two terms, in every step of a run.

    M_t = |mbar_t / A_t|^2 / 4  +  |grad f(xbar_t) - mbar_t|^2 / (4 rho^2)

A client function that is given only the first k batches of a round returns the state after k
steps, so every step can be seen without a line of the algorithm being written twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fafed.algorithms import FAFED
from studies.theory.drift import MeanPrevious
from studies.theory.findings import Claim, Finding, Table, short
from studies.theory.lab import Lab, mean, one_thread
from studies.theory.problems import Robust
from studies.theory.protocols import theory_rates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "metric"
N, Q, BETA = 4, 8, 0.9
RHOS = (1.0, 0.1, 0.01)


class Trace(NamedTuple):
    """Numbers of every step t = 0..T, of the shape (T+1, seeds)."""

    first: NDArray[np.float64]  # the two terms of M_t
    second: NDArray[np.float64]
    gradient: NDArray[np.float64]  # |grad f(xbar_t)|
    consensus: NDArray[np.float64]  # mean_i |x_i - xbar|^2
    tracker: NDArray[np.float64]  # |mbar - mean_i grad f_i(x_i)|
    smallest: NDArray[np.float64]  # entry of A
    largest: NDArray[np.float64]
    miss: NDArray[np.float64]  # |xbar_t - (xbar_{t-1} - eta mbar_{t-1} / A_{t-1})|

    @property
    def measure(self) -> NDArray[np.float64]:
        return self.first + self.second

    @property
    def bound(self) -> NDArray[np.float64]:
        """The upper bound on the gradient norm that M_t gives."""
        return self.largest * np.sqrt(8 * self.measure)

    @property
    def ratio(self) -> NDArray[np.float64]:
        return self.gradient / self.bound


def trace(algorithm: FAFED, problem: Robust, q: int, T: int, seeds: int) -> Trace:
    """A run of T steps, recorded before every step; eta must be a number."""
    eta = algorithm.eta
    assert isinstance(eta, float)
    lab = Lab(algorithm, problem, q=q, seeds=range(seeds))
    rows: list[list[Tensor]] = []
    expected: Tensor | None = None

    def look(x: Tensor, m: Tensor, A: float | Tensor) -> None:
        """x and m are (seeds, N or 1, d), A is (seeds, 1, d) or a number."""
        nonlocal expected
        A = torch.as_tensor(A, dtype=x.dtype).expand(seeds, 1, problem.d)
        xbar, mbar = x.mean(-2), m.mean(-2)
        full = problem.full(xbar)
        exact = problem.exact(x.expand(seeds, problem.clients, problem.d)).mean(-2)
        move = mbar / A.squeeze(-2)
        rows.append(
            [
                move.square().sum(-1) / 4,
                (full - mbar).square().sum(-1) / (4 * algorithm.rho**2),
                full.norm(dim=-1),
                (x - xbar.unsqueeze(-2)).square().sum(-1).mean(-1),
                (mbar - exact).norm(dim=-1),
                A.amin((-1, -2)),
                A.amax((-1, -2)),
                (xbar - (xbar if expected is None else expected)).norm(dim=-1),
            ]
        )
        expected = xbar - eta * move

    start = lab.shared.x
    lab.open()
    look(start, lab.shared.m, 1.0)  # the first step has no A
    for _ in range(T // q):
        down, batches = algorithm.send(lab.shared), lab.batches()
        for k in range(1, q + 1):
            _, message = algorithm.local(lab.grad, down, lab.local, batches.first(k))
            v = mean(message).v if k == q else down.v
            look(message.x, message.m, algorithm.scale(v))
        lab.round()
    columns = zip(*rows, strict=True)
    return Trace(*(torch.stack(column).numpy() for column in columns))


@one_thread()
def measure(quick: bool = False, seeds: int = 4) -> Finding:
    T = 128 if quick else 2048
    eta = float(theory_rates("FAFED", N, T)[0])
    alpha = float(theory_rates("FAFED", N, T)[1])
    problem = Robust(clients=N, size=1.0)
    traces = {rho: trace(FAFED(eta, alpha, BETA, rho), problem, Q, T, seeds) for rho in RHOS}
    exact = {
        cls.__name__: trace(
            cls(eta, alpha, BETA, adaptivity="identity"),
            Robust(clients=N, size=1.0, noise=0.0),
            Q,
            128,
            1,
        )
        for cls in (FAFED, MeanPrevious)
    }
    tables = {"metric": _table(traces), "clients": _client_table(traces[0.1], exact)}
    return Finding(
        name=NAME,
        title="The measure of the theory",
        about=(
            f"FAFED on the problem of the rates with strong heterogeneity (b_i = +-1), N = {N}, "
            f"q = {Q}, T = {T:,}, eta = {short(eta)}, alpha = {short(alpha)}, beta = {BETA}, "
            f"{seeds} seeds, looked at in every step t = 0..T. M_t is the quantity that the "
            "convergence theorem bounds: a quarter of the squared scaled step plus the squared "
            "error of the tracker m over 4 rho^2."
        ),
        settings={"N": N, "q": Q, "T": T, "eta": eta, "alpha": alpha, "seeds": seeds},
        tables=tables,
        claims=_claims(traces, exact),
        lines={"trace": traces[0.1], "rho": 0.1},
    )


def _table(traces: dict[float, Trace]) -> Table:
    rows = [
        (
            rho,
            found.ratio.size,
            float(found.ratio.max()),
            float(found.measure[1:].mean()),
            float(found.second[1:].sum() / found.measure[1:].sum()),
            float(found.gradient[1:].mean()),
            float(found.tracker[1:].mean()),
            float(found.smallest[1:].min()),
            float(found.largest[1:].max()),
        )
        for rho, found in traces.items()
    ]
    return Table(
        "M_t along a run",
        (
            "rho",
            "records",
            "largest gradient norm / bound",
            "mean M",
            "share of its second term",
            "mean gradient norm",
            "mean tracker error",
            "smallest A",
            "largest A",
        ),
        rows,
        "The bound is max(A) sqrt(8 M); a ratio above 1 would break it. The tracker error is the "
        "distance of the mean of m from the mean gradient at the clients' own points.",
    )


def _client_table(found: Trace, exact: dict[str, Trace]) -> Table:
    step = np.arange(len(found.gradient))
    rows = [
        ("mean squared distance of clients, first step of a round", _at(found, step % Q == 1)),
        ("the same at the synchronising step", _at(found, (step % Q == 0) & (step > 0))),
        ("largest error of the mean recursion", _clean(found.miss.max())),
        ("largest tracker error, exact gradients", _clean(exact["FAFED"].tracker.max())),
        (
            "the same with the mean previous iterate",
            _clean(exact["MeanPrevious"].tracker.max()),
        ),
    ]
    return Table(
        "What the clients share",
        ("quantity", "value"),
        rows,
        "rho = 0.1; below 1e-12 is shown as 0. The mean recursion is "
        "xbar_{t+1} = xbar_t - eta mbar_t / A_t.",
    )


def _at(found: Trace, steps: NDArray[np.bool_]) -> float:
    return _clean(found.consensus[steps].mean())


def _clean(value: Any) -> float:
    """Rounding errors are shown as zero: their digits differ from machine to machine."""
    return 0.0 if abs(value) < 1e-12 else float(value)


def _claims(traces: dict[float, Trace], exact: dict[str, Trace]) -> list[Claim]:
    ratio = max(float(found.ratio.max()) for found in traces.values())
    count = sum(found.ratio.size for found in traces.values())
    step = np.arange(len(traces[0.1].gradient))
    apart = _at(traces[0.1], (step % Q == 0) & (step > 0))
    together = _at(traces[0.1], step % Q == 1)
    share = {rho: found.second[1:].sum() / found.measure[1:].sum() for rho, found in traces.items()}
    means = {rho: float(found.measure[1:].mean()) for rho, found in traces.items()}
    norms = {rho: float(found.gradient[1:].mean()) for rho, found in traces.items()}
    local, wrong = exact["FAFED"].tracker.max(), exact["MeanPrevious"].tracker.max()
    return [
        Claim(
            "M_t bounds the gradient norm: |grad f(xbar_t)| <= max(A_t) sqrt(8 M_t).",
            ratio <= 1,
            f"In all {count:,} records the ratio of the two sides is at most {short(ratio, 3)}.",
        ),
        Claim(
            "M_t can stand for the gradient norm as a measure of convergence.",
            ratio <= 1,
            "Where M is small the gradient is, by the bound above.",
            f"But it depends on rho through its second term: the mean M is {short(means[1.0], 3)}, "
            f"{short(means[0.1], 3)} and {short(means[0.01], 3)} for rho = 1, 0.1 and 0.01, while "
            f"the mean gradient norms are {short(norms[1.0], 3)}, {short(norms[0.1], 3)} and "
            f"{short(norms[0.01], 3)}. At rho = 0.01 the second term makes up "
            f"{short(100 * float(share[0.01]), 4)} per cent of M, and the bound is "
            f"{short(1 / float(traces[0.01].ratio.max()), 3)} times the gradient norm at best. "
            "Runs with different rho cannot be compared by M.",
        ),
        Claim(
            "All clients hold the same point at a synchronising step.",
            apart < 1e-12,
            f"Their mean squared distance there is {short(apart, 3)}; they agree one step later, "
            f"at the first step of the next round ({short(together)}).",
        ),
        Claim(
            "With exact gradients the mean of m is the mean of the clients' gradients.",
            local < 1e-12,
            "In every step, to rounding. With the mean previous iterate it would be off by up to "
            f"{short(float(wrong), 2)}.",
        ),
    ]


def draw(finding: Finding) -> dict[str, Figure]:
    from studies.theory.figures import (
        BLUE,
        GREEN,
        INK,
        OCHRE,
        RED,
        label_ends,
        log_axes,
        name_axes,
        note,
        panels,
    )

    found: Trace = finding.lines["trace"]
    figure, (top, federation, within, matrix) = panels(2, 2, (9.6, 5.2))
    t = np.arange(1, len(found.gradient))

    def plot(axis: Any, values: NDArray[np.float64], hue: str) -> NDArray[np.float64]:
        one = np.asarray(values[1:].mean(-1))  # over seeds
        axis.plot(t, one, color=hue, linewidth=1.3)
        return one

    for axis, pairs in (
        (
            top,
            (
                (found.bound, INK, "max(A) sqrt(8 M)"),
                (found.gradient, BLUE, "gradient norm"),
                (found.tracker, OCHRE, "tracker error"),
            ),
        ),
        (federation, ((found.second, RED, "tracker's term"), (found.first, GREEN, "step's term"))),
    ):
        labels = [(text, _end(plot(axis, values, hue)), hue) for values, hue, text in pairs]
        log_axes(axis, (1, 10, 100, 1000))
        label_ends(axis, labels)
    name_axes(top, "The gradient norm and its bound", "Step")
    name_axes(federation, f"The two terms of M, rho = {finding.lines['rho']}", "Step")

    rounds = found.consensus[1:].reshape(-1, Q, found.consensus.shape[-1])
    k = np.arange(1, Q + 1)
    for part, hue, text in ((slice(0, 16), OCHRE, "first 16"), (slice(-16, None), BLUE, "last 16")):
        rms = np.sqrt(rounds[part].mean((0, 2)))
        within.plot(k, rms, "o-", color=hue, linewidth=1.5, markersize=4)
        beside = {"xytext": (7, 0), "textcoords": "offset points", "annotation_clip": False}
        note(within, f"{text} rounds", (k[-1], rms[-1]), hue, **beside)
    within.set_xticks(k)
    within.set_ylim(bottom=0)
    name_axes(within, "Clients part within a round", "Local step k", "Distance from the mean")

    labels = [
        (f"{text} entry", _end(plot(matrix, values, INK)), INK)
        for values, text in ((found.largest, "largest"), (found.smallest, "smallest"))
    ]
    log_axes(matrix, (1, 10, 100, 1000))
    matrix.set_yscale("linear")
    matrix.set_ylim(bottom=0)
    label_ends(matrix, labels)
    name_axes(matrix, "The adaptive matrix A", "Step")
    return {NAME: figure}


def _end(values: NDArray[np.float64]) -> float:
    return float(values[-len(values) // 8 :].mean())
