"""One file per contender, run by the contender's own Python. Only `ours` imports fafed."""
