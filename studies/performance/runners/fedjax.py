"""FedJAX: its federated averaging, on its default backend: one compiled function per step.

Its other backend, pmap, calls functions that JAX no longer has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # before jax

import jax

jax.tree_map = jax.tree.map  # FedJAX calls it by the name that it had

import fedjax  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402

from studies.performance.runners import files, jax_models  # noqa: E402
from studies.performance.runners.files import Clock  # noqa: E402


class Given(fedjax.ClientDataset):
    """A client's dataset that hands out the task's batches."""

    def __init__(self, inputs: Any, targets: Any, rows: Any) -> None:
        super().__init__({"x": inputs[rows.ravel()], "y": targets[rows.ravel()]})
        self.batch = rows.shape[1]

    def shuffle_repeat_batch(self, *args: Any, **kwargs: Any) -> Iterator[dict[str, Any]]:
        for at in range(0, len(self), self.batch):
            part = slice(at, at + self.batch)
            yield {name: values[part] for name, values in self.raw_examples.items()}


def main() -> None:
    found = files.arguments()
    about, clock = files.about(found.task), Clock(found.began)
    x0, inputs, targets, warm, rounds = (files.mapped(found.task, name) for name in files.NAMES)
    shapes, logits = jax_models.MODELS[about["model"]](**about["options"])

    def gradient(parameters: Any, batch: Any, rng: Any) -> Any:
        def loss(p: Any) -> Any:
            return jax_models.loss(logits(p, batch["x"]), batch["y"])

        return jax.grad(loss)(parameters)

    algorithm = fed_avg.federated_averaging(
        gradient,
        fedjax.optimizers.sgd(about["eta"]),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=warm.shape[2]),
    )
    state = algorithm.init(jax_models.split(x0, shapes))
    key = jax.random.PRNGKey(0)
    for rows in (warm, *rounds):
        clients = [
            (str(client).encode(), Given(inputs, targets, own), key)
            for client, own in enumerate(rows)
        ]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        clock.lap()
    clock.answer(found.answer, jax_models.vector(state.params))


if __name__ == "__main__":
    main()
