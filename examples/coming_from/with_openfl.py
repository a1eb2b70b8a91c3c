"""The small job in OpenFL 1.9: its workflow interface, on one machine. docs/coming-from/openfl.md
says what to install.

    python examples/coming_from/with_openfl.py
"""

from copy import deepcopy

import job
import torch
from openfl.experimental.workflow.interface import Aggregator, Collaborator, FLSpec
from openfl.experimental.workflow.placement import aggregator, collaborator
from openfl.experimental.workflow.runtime import LocalRuntime
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


# --8<-- [start:job]
def average(states, weights):
    """The weighted mean of state dictionaries."""
    total = sum(weights)
    pairs = list(zip(states, weights, strict=True))
    return {key: sum(state[key] * (w / total) for state, w in pairs) for key in states[0]}


class FedAvg(FLSpec):
    def __init__(self, model, rounds):
        super().__init__()
        self.model, self.rounds, self.done = model, rounds, 0

    @aggregator
    def start(self):
        self.collaborators = self.runtime.collaborators
        self.next(self.train, foreach="collaborators")

    @collaborator
    def train(self):
        optimiser = torch.optim.SGD(self.model.parameters(), lr=job.ETA)
        for _ in range(job.EPOCHS):
            for inputs, targets in DataLoader(self.data, job.BATCH, shuffle=True):
                optimiser.zero_grad()
                F.cross_entropy(self.model(inputs), targets).backward()
                optimiser.step()
        self.examples = len(self.data)
        self.next(self.join)

    @aggregator
    def join(self, inputs):
        states = [each.model.state_dict() for each in inputs]
        self.model = deepcopy(inputs[0].model)
        self.model.load_state_dict(average(states, [each.examples for each in inputs]))
        self.done += 1
        if self.done < self.rounds:
            self.next(self.train, foreach="collaborators")
        else:
            self.next(self.end)

    @aggregator
    def end(self):
        print(f"accuracy {job.accuracy(self.model):.3f}")


def private(index):
    """What stays with one collaborator."""
    return {"data": TensorDataset(*job.client(index))}


members = [
    Collaborator(name=f"client{i}", private_attributes_callable=private, index=i)
    for i in range(job.CLIENTS)
]
flow = FedAvg(job.model(), job.ROUNDS)
flow.runtime = LocalRuntime(aggregator=Aggregator(), collaborators=members)
flow.run()
# --8<-- [end:job]
