"""The speed of fafed beside that of other libraries, as ratios of times of the same run."""
