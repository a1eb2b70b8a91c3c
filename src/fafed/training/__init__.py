"""The round loop, participation, evaluation, and the builder of every run."""
