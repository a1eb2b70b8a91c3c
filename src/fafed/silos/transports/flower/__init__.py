"""Flower as a transport. Only this package uses Flower's types.

The ServerApp runs our round loop over Flower's grid. The ClientApp is a new process for every
message, so a silo's state is on its own disk. The SuperNode's node-config names the silo's own
file, which says where the state is and what may run.

Messages are byte strings: the head is in a ConfigRecord, and the numbers are the data of one Array,
which Flower carries in pieces. Nothing is pickled: neither side lets Flower decode the data.
"""
