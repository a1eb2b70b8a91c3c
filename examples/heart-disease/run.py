"""Four hospitals, one model: FedAvg and FAFED, each hospital alone, and all data in one place.

    python examples/heart-disease/run.py

It takes the real records if `fafed data get heart-disease` has fetched them, and made-up ones of
their shape (make_data.py) otherwise, and says which. Step sizes are chosen on patients of each
hospital that are held out, never on the test set.
"""

import argparse
import tempfile
import tomllib
from pathlib import Path

import make_data
import real_data
import torch

import fafed
from fafed.data import Own, Table, from_folder
from fafed.models import MLP, SoftmaxRegression

HERE = Path(__file__).parent
INPUTS, CLASSES = 13, 2
MODELS = {
    "logistic regression": lambda: SoftmaxRegression(INPUTS, CLASSES),
    "MLP, 16 hidden": lambda: MLP(INPUTS, (16,), CLASSES),
}
ALGORITHMS = {"FedAvg": fafed.FedAvg, "FAFED": fafed.FAFED}
GRIDS = {"FedAvg": (0.03, 0.1, 0.3, 1.0), "FAFED": (0.003, 0.01, 0.03, 0.1)}
SEEDS = (1, 2, 3)


def data(folder: Path) -> Own:
    rules = tomllib.loads((HERE / "table.toml").read_text("utf-8"))
    if real_data.here():
        print("Records: the real ones.")
        real_data.write(folder)
    else:
        print("Records: made up. `fafed data get heart-disease` fetches the real ones.")
        make_data.write(folder)
    return from_folder(folder, Table.from_dict(rules))


def trained(make, own, algorithm, eta, rounds, seed, *, held_out=False, **more):
    """The last record of a run: of the test set, or of patients that are held out."""
    torch.manual_seed(seed)
    return fafed.train(
        make(),
        own.clients,
        ALGORITHMS[algorithm](eta=eta),
        rounds=rounds,
        local_steps=5,
        batch_size=32,
        seed=seed,
        test=None if held_out else own.test,
        client_test=0.2 if held_out else None,
        metrics={"accuracy": fafed.metrics.accuracy},
        eval_every=rounds,
        quiet=True,
        **more,
    ).history[-1]


def chosen(make, own, algorithm, rounds) -> float:
    """The step size with the lowest loss on the patients that are held out."""

    def loss(eta: float) -> float:
        found = trained(make, own, algorithm, eta, rounds, 0, held_out=True)
        return found.clients_test["loss"]["mean"]

    return min(GRIDS[algorithm], key=loss)


def line(name: str, eta: float, found: list) -> str:
    values = [record.test["accuracy"] for record in found]
    mean = sum(values) / len(values)
    spread = max(values) - min(values)
    told = [record.diagnostics["epsilon"] for record in found if "epsilon" in record.diagnostics]
    epsilon = f", epsilon {max(told):.2f}" if told else ""
    return f"| {name}{epsilon} | {eta:g} | {mean:.3f} | {spread:.3f} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--seeds", type=int, default=len(SEEDS))
    given = options.parse_args()
    seeds = SEEDS[: given.seeds]
    with tempfile.TemporaryDirectory() as folder:
        own = data(Path(folder))
    for title, make in MODELS.items():
        print(f"\n{title}\n\n| method | eta | test accuracy | spread over seeds |")
        print("| --- | --- | --- | --- |")
        for name in ALGORITHMS:
            eta = chosen(make, own, name, given.rounds)
            settings = (make, own, name, eta, given.rounds)
            rows = {name: {}}
            if name == "FedAvg":
                rows["each hospital alone"] = {"baseline": "local"}
                rows["all data in one place"] = {"baseline": "pooled"}
                private = fafed.Privacy(level="example", noise=2.0, clip=1.0, delta=1e-3)
                rows["FedAvg with differential privacy"] = {"privacy": private}
            for row, more in rows.items():
                print(line(row, eta, [trained(*settings, seed, **more) for seed in seeds]))


if __name__ == "__main__":
    main()
