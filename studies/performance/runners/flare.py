"""NVIDIA FLARE: its Collab interface on its simulator, one process for each client.

With fewer processes than clients it would swap clients in and out, which takes far longer.
"""

from __future__ import annotations

import os
import tempfile

from nvflare.collab import CollabRecipe
from nvflare.recipe.sim_env import SimEnv

from studies.performance.runners import flare_site, harness


def main() -> None:
    found = harness.arguments()
    os.environ[flare_site.TASK] = str(found.task.absolute())
    os.environ[flare_site.ANSWER] = str(found.answer.absolute())
    os.environ[flare_site.BEGAN] = str(found.began)
    clients = harness.read(found.task).clients
    recipe = CollabRecipe("bench", flare_site, flare_site, min_clients=clients)
    with tempfile.TemporaryDirectory() as folder:
        recipe.execute(SimEnv(num_clients=clients, num_threads=clients, workspace_root=folder))


if __name__ == "__main__":
    main()
