"""Flower as the carrier between real silos: the only place that knows its types.

The ServerApp runs our round loop over Flower's grid. The ClientApp is a new process for every
message: what a silo keeps is on its own disk, and its own file, named by its SuperNode's
node-config, says what that is and what may run.

What travels is byte strings: the head in a ConfigRecord, the numbers as the data of one Array,
which Flower carries in pieces. Nothing is pickled: neither side asks Flower to read the data.
"""
