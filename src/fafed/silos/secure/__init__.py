"""Secure aggregation over silos: the server's process sees masked integers and their sum.

An exchange has five messages to each silo: `keys`, `shares`, `masked`, `agree`, `unmask`, the steps
of `fafed.privacy.secure_sum`. The third one carries what a `visit` carries in an open run. The
silo computes as in an open run, encodes its answer as in the simulation, and masks it.

`task` is what both sides know, `silo` the silo's side, `engine` the server's.
"""
