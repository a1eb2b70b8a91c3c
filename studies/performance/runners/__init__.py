"""One file per contender, run by the contender's own Python; none but `ours` knows fafed."""
