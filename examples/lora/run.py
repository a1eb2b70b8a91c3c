"""Federated LoRA in simulation: FedAvg, SCAFFOLD and FAFED on three kinds of text.

python examples/lora/run.py
"""

import argparse

import torch
from byte_gpt import data, model

import fafed

ALGORITHMS = {
    "FedAvg": fafed.FedAvg(eta=0.3),
    "SCAFFOLD": fafed.SCAFFOLD(eta=0.3),
    "FAFED": fafed.FAFED(eta=0.003, alpha=0.1, beta=0.9, rho=0.01),
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--local-steps", type=int, default=5)
    options.add_argument("--base-steps", type=int, default=100, help="how much the base has read")
    given = options.parse_args()
    torch.manual_seed(0)
    start = model(steps=given.base_steps)
    clients, test = data()
    # --8<-- [start:train]
    for name, algorithm in ALGORITHMS.items():
        found = fafed.train(
            start,
            clients,
            algorithm,
            rounds=given.rounds,
            local_steps=given.local_steps,
            batch_size=8,
            loss="model",
            test=test,
            metrics={"accuracy": fafed.metrics.accuracy},
            eval_every=given.rounds,
        )
        # --8<-- [end:train]
        last = found.history[-1]
        share = found.x.numel() / sum(p.numel() for p in start.parameters())
        print(
            f"{name:9} {found.x.numel()} of the model's numbers ({share:.0%})  "
            f"test loss {last.test['loss']:.3f}  accuracy {last.test['accuracy']:.3f}"
        )


if __name__ == "__main__":
    main()
