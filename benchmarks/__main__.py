"""`make bench`."""

from benchmarks import engine_choice

engine_choice.main()
