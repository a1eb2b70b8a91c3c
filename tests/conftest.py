"""One thread per test process, and tests that wait for other processes begin first."""

import torch

torch.set_num_threads(1)

WORKERS = 3  # of `make test`
LANES = 2  # of them begin with tests that wait; more at once would be too much for two cores


def pytest_collection_modifyitems(items):
    """They stand at the head of some workers' shares: the others steal what is behind them."""
    waiting = [item for item in items if item.get_closest_marker("waits")]
    rest = [item for item in items if not item.get_closest_marker("waits")]
    share = -(-len(items) // WORKERS)
    items.clear()
    for worker in range(WORKERS):
        own = waiting[worker::LANES] if worker < LANES else []
        items += own + rest[: share - len(own)]
        del rest[: share - len(own)]
    items += rest
