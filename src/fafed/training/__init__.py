"""The round loop, participation, evaluation, and `fafed.train`."""
