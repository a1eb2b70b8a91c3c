"""JAX by hand: a round of FedAvg is one compiled function.

`--ways vmap`: the local steps are a `scan`, all clients are one `vmap` of it.
`--ways map`: XLA has two devices, one for each core. Each one goes through half of the clients one
after another, so that a client's vector stays in the cache. Rows of a batch are read from the
dataset inside the compiled function. Compilation belongs to the start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

DEVICES = 2 if "map" in sys.argv else 1
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"  # before jax

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from studies.performance.runners import files, jax_models  # noqa: E402
from studies.performance.runners.files import Clock  # noqa: E402


def local_steps(logits: Callable[..., Any], eta: float) -> Callable[..., Any]:
    """(parameters, inputs, targets, rows of q batches) -> the parameters after q steps."""

    def gradient(parameters: Any, inputs: Any, targets: Any) -> Any:
        return jax.grad(lambda p: jax_models.loss(logits(p, inputs), targets))(parameters)

    def client(parameters: Any, inputs: Any, targets: Any, rows: Any) -> Any:
        def step(p: Any, chosen: Any) -> tuple[Any, None]:
            slopes = gradient(p, inputs[chosen], targets[chosen])
            return [a - eta * b for a, b in zip(p, slopes, strict=True)], None

        return lax.scan(step, parameters, rows)[0]

    return client


def by_vmap(client: Callable[..., Any]) -> Callable[..., Any]:
    def round(parameters: Any, inputs: Any, targets: Any, rows: Any) -> Any:
        ends = jax.vmap(client, (None, None, None, 0))(parameters, inputs, targets, rows)
        return [end.mean(0) for end in ends]

    return round


def by_map(client: Callable[..., Any], clients: int) -> Callable[..., Any]:
    """For one device's share of the clients. The sum goes over the devices."""

    def share(parameters: Any, inputs: Any, targets: Any, rows: Any) -> Any:
        # each core has its own copy, or the gradients would be sums over the cores
        own = [lax.pcast(p, "cores", to="varying") for p in parameters]

        def add(sums: Any, chosen: Any) -> tuple[Any, None]:
            ends = client(own, inputs, targets, chosen)
            return [a + b / clients for a, b in zip(sums, ends, strict=True)], None

        zeros = [jnp.zeros_like(p) for p in own]
        return lax.psum(lax.scan(add, zeros, rows)[0], "cores")

    mesh, everywhere = Mesh(jax.devices(), ("cores",)), PartitionSpec()
    parts = PartitionSpec("cores")
    return jax.shard_map(
        share, mesh=mesh, in_specs=(everywhere, everywhere, everywhere, parts), out_specs=everywhere
    )


def main() -> None:
    found = files.arguments(ways="vmap")
    about, clock = files.about(found.task), Clock(found.began)
    arrays = {name: files.mapped(found.task, name) for name in files.NAMES}
    shapes, logits = jax_models.MODELS[about["model"]](**about["options"])
    client = local_steps(logits, about["eta"])
    many = found.ways == "map"
    round = jax.jit(by_map(client, about["clients"]) if many else by_vmap(client))
    mesh = Mesh(jax.devices(), ("cores",))
    spread = NamedSharding(mesh, PartitionSpec("cores"))
    copied = NamedSharding(mesh, PartitionSpec())

    def placed(value: Any, where: NamedSharding) -> Any:
        return jax.device_put(value, where)

    inputs, targets = placed(arrays["inputs"], copied), placed(arrays["targets"], copied)
    x = placed(jax_models.split(arrays["x0"], shapes), copied)
    timed = arrays["rows"]
    compiled = round.lower(x, inputs, targets, placed(timed[0], spread)).compile()
    x = jax.block_until_ready(round(x, inputs, targets, placed(arrays["warm"], spread)))
    clock.lap()
    for rows in timed:
        x = jax.block_until_ready(compiled(x, inputs, targets, placed(rows, spread)))
        clock.lap()
    clock.answer(found.answer, jax_models.vector(x))


if __name__ == "__main__":
    main()
