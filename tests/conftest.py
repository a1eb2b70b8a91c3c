"""One thread per test process, and tests that wait for other processes begin first."""

import torch

torch.set_num_threads(1)

WORKERS = 3  # of `make test`


def pytest_collection_modifyitems(items):
    """One such test at the head of each worker's share: the others steal what is behind it."""
    waiting = [item for item in items if item.get_closest_marker("waits")]
    rest = [item for item in items if not item.get_closest_marker("waits")]
    share = -(-len(items) // WORKERS)
    items.clear()
    for worker in range(WORKERS):
        own = waiting[worker::WORKERS]
        items += own + rest[: share - len(own)]
        del rest[: share - len(own)]
    items += rest
