"""Client drift: how far from the optimum each algorithm comes to rest, by formula and measured.

Two quadratics with exact gradients, so the only error left is the bias of local steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fafed.algorithms import ALGORITHMS, FAFED, STEM, FedAvg
from fafed.algorithms.fafed import Down, Local, Message
from fafed.core.algorithm import AnyAlgorithm
from fafed.core.batch import Batches
from fafed.core.gradient import Grad
from fafed.core.schedules import at
from fafed.report.numbers import listing
from studies.theory import fixed_points
from studies.theory.findings import Claim, Finding, Table, short
from studies.theory.lab import Lab, PerLane, one_thread
from studies.theory.problems import Quadratics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "drift"
Q, ETA = 5, 0.1
ALPHAS = (1.0, 0.9, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
PROBLEM = Quadratics()
CLIENTS = fixed_points.Clients.from_sequences(PROBLEM.a, PROBLEM.b)
WITH_ALPHA = ("fafed", "stem")  # measured for several alpha, the others once
WITHOUT_ALPHA = (
    "fedavg",
    "scaffold",
    "prsgdm",
    "fedprox",
    "fedpd",
    "fedadam",
    "fedyogi",
    "fedadagrad",
    "fedams",
    "fedcams",
    "localamsgrad",
    "mime",
    "mimelite",
    "mimeadam",
    "fedglomo",
    "domo",
    "fedcm",
    "scaffoldm",
    "feddyn",
    "fedexp",
    "naive",
)
WITHOUT_FORMULA = ("diloco", "fedadamw", "fedlada", "fedmuon", "fedpac", "fedkron")
ROUNDS = 500  # of those without a formula
AGREE = 1e-8
STILL = 1e-12  # a round that moves the model by less is the last


@dataclass(frozen=True)
class MeanPrevious(FAFED):
    """A wrong FAFED, for comparison.

    In a round's first step it takes the old gradient at the mean of the clients' last iterates. In
    the right one each client uses its own last iterate.
    """

    def local(
        self, grad: Grad, down: Down, local: Local, batches: Batches
    ) -> tuple[Local, Message]:
        mean = down.x + at(self.eta, down.t) * down.m / self.scale(down.v)
        return super().local(grad, down, Local(mean.expand_as(local.x)), batches)


# The settings of each algorithm. All plain local steps have the effective size ETA. Floors of
# denominators are 1, because gradients vanish at the optimum.
SETTINGS: dict[str, dict[str, Any]] = {
    "fafed": {"eta": ETA, "rho": 1.0},
    "prsgdm": {"eta": ETA * 0.1, "beta": 0.9},  # the step is eta / (1 - beta)
    "fedprox": {"eta": ETA, "mu": 1.0},
    "domo": {"eta": ETA * 0.01, "mu_s": 0.9, "mu_l": 0.9},
    "mime": {"eta": ETA, "beta1": 0.5},
    "mimelite": {"eta": ETA, "beta1": 0.5},
    "mimeadam": {"eta": ETA, "beta1": 0.5, "tau": 1.0},
    "naive": {"eta": ETA, "rho": 1.0},
    "fedcm": {"eta": ETA * 10, "alpha": 0.1},  # the step is eta * alpha
    "scaffoldm": {"eta": ETA * 10, "alpha": 0.1},
    "feddyn": {"eta": ETA, "mu": 1.0},
    "fedexp": {"eta": ETA, "eps": 1.0},  # with a small one the server's step grows near the rest
    **{
        name: {"eta": ETA, "eta_g": 1.0, "beta1": 0.5, "tau": 1.0}
        for name in ("fedadam", "fedyogi", "fedadagrad", "fedams", "fedcams")
    },
}


@one_thread()
def measure(quick: bool = False) -> Finding:
    """`quick` leaves out the methods without a formula, and alpha below 0.01, which takes ten times
    as many rounds to come to rest."""
    alphas = ALPHAS[:6] if quick else ALPHAS
    curves = _curves(alphas)
    marks = [_mark(name) for name in ALGORITHMS if name in WITHOUT_ALPHA]
    etas = _shrinking()
    reference = _reference()
    alone = [*curves, *marks]
    worst = max(abs(b.measured - b.closed).max() for b in [*alone, etas, reference])
    return Finding(
        name=NAME,
        title="Client drift",
        about=(
            f"Two clients with f_i(x) = a_i (x - b_i)^2 / 2, a = {PROBLEM.a}, b = {PROBLEM.b}, so "
            f"the optimum is {short(PROBLEM.best)}; exact gradients, q = {Q} local steps of "
            f"effective size {ETA}. The bias is the distance of the point of rest from the "
            "optimum. Its formula comes from the algebra of one round, the measurement from the "
            "library's code. Nothing is random."
        ),
        settings={"a": list(PROBLEM.a), "b": list(PROBLEM.b), "q": Q, "eta": ETA},
        tables={
            "alpha": _alpha_table(alphas, curves),
            "algorithms": _algorithm_table(marks),
            **({} if quick else {"without": _without_formula_table(ROUNDS)}),
            "eta": etas.table(
                "STEM with alpha = 20 eta^2, q = 10",
                ("eta", "alpha"),
                [(eta, 20 * eta**2) for eta in SHRINKING],
            ),
            "fedavg": reference.table("FedAvg", ("q", "eta"), REFERENCE),
        },
        claims=_claims(alphas, curves, marks, etas, float(worst)),
        lines={"alphas": alphas, "curves": curves, "marks": marks},
    )


class Bias(NamedTuple):
    """The bias of one algorithm, by formula and measured, in one or several settings."""

    name: str
    closed: NDArray[np.float64]  # by formula
    measured: NDArray[np.float64]
    settings: dict[str, Any] = {}  # noqa: RUF012  a NamedTuple's default, never changed

    def table(self, title: str, columns: tuple[str, ...], keys: Any) -> Table:
        rows = [
            (*key, float(c), float(m))
            for key, c, m in zip(keys, self.closed, self.measured, strict=True)
        ]
        return Table(title, (*columns, "bias by formula", "measured"), rows)


def not_measured() -> list[str]:
    """The federated algorithms of the library that this study leaves out."""
    measured = (*WITH_ALPHA, *WITHOUT_ALPHA, *WITHOUT_FORMULA)
    federated = [name for name, cls in ALGORITHMS.items() if cls().population is None]
    return [ALGORITHMS[name].__name__ for name in federated if name not in measured]


def _settings(name: str) -> dict[str, Any]:
    return SETTINGS.get(name, {"eta": ETA})


def build(name: str, **more: Any) -> AnyAlgorithm:
    return ALGORITHMS[name](**_settings(name), **more)


def _clean(bias: float) -> float:
    """Show numbers below 1e-9 as zero: runs are stopped when they are that close to rest."""
    return 0.0 if abs(bias) < 1e-9 else float(bias)


# Algorithms with an alpha: the bias for several alpha.


def _curves(alphas: tuple[float, ...]) -> list[Bias]:
    curves = []
    for name in WITH_ALPHA:
        found = bias_at_rest(build(name, alpha=PerLane(alphas)), Q, (len(alphas),))
        closed = [_closed_alpha(name, alpha) for alpha in alphas]
        curves.append(Bias(ALGORITHMS[name].__name__, np.array(closed), found))
    mean = MeanPrevious(eta=ETA, alpha=PerLane(alphas), adaptivity="identity")
    closed = [fixed_points.stem(CLIENTS, Q, ETA, alpha, mean=True) for alpha in alphas]
    found = bias_at_rest(mean, Q, (len(alphas),))
    curves.append(Bias("STEM, mean previous iterate", np.array(closed) - PROBLEM.best, found))
    return curves


def _closed_alpha(name: str, alpha: float) -> float:
    match build(name):
        case FAFED() as f:
            x = fixed_points.fafed(CLIENTS, Q, ETA, alpha, f.beta, f.rho)
        case _:
            x = fixed_points.stem(CLIENTS, Q, ETA, alpha)
    return x - PROBLEM.best


def bias_at_rest(
    algorithm: AnyAlgorithm, q: int, lanes: tuple[int, ...], most: int = 8000
) -> NDArray[np.float64]:
    """The bias of every lane when the model has stopped moving."""
    lab = Lab(algorithm, PROBLEM, q=q, lanes=lanes)
    x = lab.round().shared.x
    for _ in range(most):
        before, x = x, lab.round().shared.x
        if float((x - before).abs().max()) < STILL:
            break
    return np.asarray(x[..., 0, 0, 0].numpy() - PROBLEM.best)


# Algorithms without an alpha: one number each.


def _mark(name: str) -> Bias:
    algorithm = build(name)
    measured, shared, locals_ = bias_at_rest_on_engine(algorithm, Q)
    closed = _closed(name, algorithm, shared, locals_)
    return Bias(
        ALGORITHMS[name].__name__,
        np.array([closed - PROBLEM.best]),
        np.array([measured]),
        _settings(name),
    )


def bias_at_rest_on_engine(
    algorithm: AnyAlgorithm, q: int, most: int = 2000
) -> tuple[float, Any, list[Any]]:
    """The bias at rest on the library's own engine, and the states it ended in."""
    run = PROBLEM.run(algorithm, rounds=most, q=q)
    x, still = float(run.state.shared.x), 0
    for _ in run:
        before, x = x, float(run.state.shared.x)
        still = still + 1 if abs(x - before) < STILL else 0
        if still == 5:
            break
    states = run.engine.snapshot().states
    locals_ = [state.local for state in states if state is not None]
    return x - PROBLEM.best, run.state.shared, locals_


def _closed(name: str, algorithm: Any, shared: Any, locals_: list[Any]) -> float:
    c, a = CLIENTS, algorithm
    match name:
        case "fedavg" | "fedadam" | "fedyogi" | "fedadagrad" | "fedams" | "fedglomo":
            return fixed_points.fedavg(c, Q, a.eta)
        case "fedcams":  # in one dimension the compressed sign is the number itself
            return fixed_points.fedavg(c, Q, a.eta)
        case "fedexp":  # at rest the mean move is zero, whatever the server's step
            return fixed_points.fedavg(c, Q, a.eta)
        case "fedcm":  # at rest its direction D is zero, and local steps are plain
            return fixed_points.fedavg(c, Q, a.eta * a.alpha)
        case "scaffold" | "scaffoldm" | "feddyn" | "fedpd" | "mime" | "mimeadam":
            return c.best
        case "fedprox":
            return fixed_points.fedprox(c, Q, a.eta, a.mu)
        case "prsgdm":
            return fixed_points.prsgdm(c, Q, a.eta, a.beta)
        case "domo":
            return fixed_points.domo(c, Q, a.eta, a.mu_l)
        case "mimelite":
            return fixed_points.mimelite(c, Q, a.eta, a.beta1)
        case "localamsgrad":  # vhat, a running maximum, depends on the path: read from the run
            return fixed_points.local_amsgrad(c, Q, a.eta, a.beta1, float(shared.vhat))
        case _:  # "naive"
            guess = np.array([float(shared.x), *(float(local.v) for local in locals_)])
            return fixed_points.naive(c, Q, a.eta, a.beta, a.rho, guess)


# Two tables of numbers that are known from elsewhere.

SHRINKING = (0.1, 0.05, 0.025, 0.0125)
REFERENCE = ((5, 0.02), (5, 0.1), (10, 0.02), (10, 0.1))


def _shrinking() -> Bias:
    etas, q = np.array(SHRINKING), 10
    alphas = 20 * etas**2
    found = bias_at_rest(STEM(PerLane(etas), PerLane(alphas)), q, (len(etas),))
    closed = [fixed_points.stem(CLIENTS, q, e, a) for e, a in zip(etas, alphas, strict=True)]
    return Bias("STEM", np.array(closed) - PROBLEM.best, found)


def _reference() -> Bias:
    found = [bias_at_rest_on_engine(FedAvg(eta), q)[0] for q, eta in REFERENCE]
    closed = [fixed_points.fedavg(CLIENTS, q, eta) - PROBLEM.best for q, eta in REFERENCE]
    return Bias("FedAvg", np.array(closed), np.array(found))


# Tables, claims and the figure.


def _alpha_table(alphas: tuple[float, ...], curves: list[Bias]) -> Table:
    columns, rows = ["alpha"], [[alpha] for alpha in alphas]
    for curve in curves:
        columns += [f"{curve.name}, formula", "measured"]
        for row, c, m in zip(rows, curve.closed, curve.measured, strict=True):
            row += [float(c), float(m)]
    return Table(
        "Bias against alpha",
        tuple(columns),
        rows,
        "FAFED with rho = 1. The last pair is not FAFED: each round's first old gradient is taken "
        "at the mean of the clients' last iterates, not at each client's own.",
    )


def _algorithm_table(marks: list[Bias]) -> Table:
    rows = [
        (
            mark.name,
            ", ".join(f"{key} = {value:g}" for key, value in mark.settings.items()),
            float(mark.closed[0]),
            _clean(mark.measured[0]),
        )
        for mark in sorted(marks, key=lambda mark: (round(float(mark.measured[0]), 9), mark.name))
    ]
    missing = f" Not measured yet: {listing(not_measured())}." if not_measured() else ""
    return Table(
        "Bias of the others",
        ("algorithm", "settings", "bias by formula", "measured"),
        rows,
        f"Settings that are not named are the library's defaults.{missing}",
    )


def _without_formula_table(rounds: int) -> Table:
    """Where they are after many rounds, and how far the last round moved them."""
    rows = []
    for name in WITHOUT_FORMULA:
        run = PROBLEM.run(build(name), rounds=rounds, q=Q)
        before = x = float(run.state.shared.x)
        for _ in run:
            before, x = x, float(run.state.shared.x)
        rows.append((ALGORITHMS[name].__name__, x - PROBLEM.best, abs(x - before)))
    return Table(
        f"The others, after {rounds} rounds",
        ("algorithm", "distance from the optimum", "length of the last move"),
        rows,
        "These have no formula here: their steps hardly depend on the size of the gradient, or "
        f"fall over the run. eta = {ETA}, other settings are the library's defaults. Where the "
        "last move is not small, the method does not come to rest with this step size.",
    )


def _claims(
    alphas: tuple[float, ...], curves: list[Bias], marks: list[Bias], etas: Bias, worst: float
) -> list[Claim]:
    at_alpha = {c.name: dict(zip(alphas, c.measured, strict=True)) for c in curves}
    stem, mean = at_alpha["STEM"], at_alpha["STEM, mean previous iterate"]
    fafed, low = at_alpha["FAFED"], min(alphas)
    at_mark = {mark.name: float(mark.measured[0]) for mark in marks}
    plain = at_mark["FedAvg"]
    A = fixed_points.fafed_scale(CLIENTS, Q, ETA, 1.0, FAFED().beta, 1.0)
    slower = fixed_points.fedavg(CLIENTS, Q, ETA / A) - PROBLEM.best
    same = [
        ALGORITHMS[name].__name__
        for name in ("fedadam", "fedyogi", "fedadagrad", "fedams", "fedcams")
        if abs(at_mark[ALGORITHMS[name].__name__] - plain) < AGREE
    ]
    none = [m.name for m in marks if abs(m.measured[0]) < AGREE]
    order = np.log(etas.measured[-2] / etas.measured[-1]) / np.log(2)
    return [
        Claim(
            "Formulas and measurements agree.",
            worst < AGREE,
            f"Over all algorithms and settings the largest difference is {short(worst)}.",
        ),
        Claim(
            "Variance-reduced local steps remove client drift.",
            abs(stem[low]) < 0.2 * abs(plain),
            f"FedAvg's bias is {short(plain)}. STEM's, which is FAFED's with A = 1, falls, in the "
            f"end in proportion to alpha: {short(stem[0.1])} at alpha = 0.1, {short(stem[low])} at "
            f"{low:g}.",
            f"Only a small alpha does it: at alpha = 0.9, a value of the paper's grid, the bias is "
            f"{short(stem[0.9])}, {short(100 * stem[0.9] / plain, 3)} per cent of FedAvg's. With "
            f"alpha = 20 eta^2 it falls with the power {short(float(order), 3)} of eta in the last "
            "halving.",
        ),
        Claim(
            "The adaptive matrix removes drift.",
            abs(fafed[1.0] - slower) > AGREE,
            f"With alpha = 1 FAFED's bias is {short(fafed[1.0])}, that of FedAvg with the step "
            f"eta/A, A = {short(A)}. Small alpha, not A, brings it to {short(fafed[low])} at "
            f"{low:g}. Adaptivity at the server does nothing either: {listing(same)} rest exactly "
            "where FedAvg does.",
        ),
        Claim(
            "Each client must keep its own last iterate.",
            abs(mean[low]) > 0.5 * abs(plain),
            f"With the mean in its place the bias stays at {short(mean[low])} for alpha = {low:g}, "
            f"against {short(stem[low])}.",
        ),
        Claim(
            "Some methods have no drift at all.",
            bool(none),
            f"{listing(none)} have none (below {AGREE:g}).",
        ),
    ]


def draw(finding: Finding) -> dict[str, Figure]:
    from matplotlib.ticker import FuncFormatter

    from studies.theory.figures import BLUE, DASH, GREEN, INK, MUTED, RED, name_axes, note, panels

    figure, (left, right) = panels(1, 2, (9.6, 4.0))
    alphas = np.array(finding.lines["alphas"])
    curves, marks = finding.lines["curves"], finding.lines["marks"]
    for curve, hue in zip(curves, (BLUE, GREEN, RED), strict=True):
        left.loglog(alphas, np.abs(curve.closed), color=hue, linewidth=1.6)
        left.loglog(alphas, np.abs(curve.measured), "o", color=hue, markersize=4.5)
    fedavg = next(abs(m.measured[0]) for m in marks if m.name == "FedAvg")
    left.axhline(fedavg, color=INK, linewidth=1, linestyle=DASH)
    left.set_ylim(top=0.3)
    low = alphas.min()
    note(left, "FedAvg", (low, fedavg * 1.25), INK)
    note(left, "STEM with the mean previous iterate", (low, fedavg * 0.62), RED)
    places = {"textcoords": "offset points"}
    green, blue = (
        (alpha, abs(float(curves[k].closed[finding.lines["alphas"].index(alpha)])))
        for k, alpha in ((1, 0.03), (0, 0.1))
    )
    note(left, "STEM, or FAFED with A = 1", green, GREEN, xytext=(-8, 2), ha="right", **places)
    note(left, "FAFED", blue, BLUE, xytext=(9, -5), **places)
    note(left, "lines: formula, dots: measured", (0.98, 0.06), xycoords="axes fraction", ha="right")
    for side in (left.xaxis, left.yaxis):
        side.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    name_axes(left, "Small alpha removes drift", "alpha", "|bias|")

    rows = [(m.name, m.closed[0], m.measured[0], INK) for m in marks]
    for k, alpha in enumerate(alphas):
        if alpha in (0.9, 0.1, 0.01):
            for curve, hue in zip(curves[:2], (BLUE, GREEN), strict=True):
                label = f"{curve.name}, alpha = {alpha:g}"
                rows.append((label, curve.closed[k], curve.measured[k], hue))
    rows.sort(key=lambda row: (-round(abs(row[2]), 9), row[0]), reverse=True)
    right.axvline(0, color=MUTED, linewidth=0.8)
    for place, (_, closed, measured, hue) in enumerate(rows):
        right.plot([0, measured], [place, place], color=hue, linewidth=0.9, alpha=0.45)
        right.plot(measured, place, "o", color=hue, markersize=4.5)
        right.plot(closed, place, "o", color=hue, markersize=8, fillstyle="none", mew=0.8)
    right.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=7.5)
    for tick, row in zip(right.get_yticklabels(), rows, strict=True):
        tick.set_color(row[3])
    right.grid(False)
    right.grid(True, axis="x")
    right.set_ylim(-0.7, len(rows) - 0.3)
    name_axes(right, "Bias of every algorithm", "Bias; rings: formula, dots: measured")
    return {NAME: figure}
