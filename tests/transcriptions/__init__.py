"""Each algorithm again, transcribed line by line from its pseudo-code: slow, plain and separate.

`g(i, t, x)` is client i's gradient on its batch of step t = 1, 2, ...; `g0(i, x)` the one on its
opening batch. Nothing here is imported from the library.
"""
