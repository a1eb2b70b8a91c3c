"""Your own model over your own clients: four clients whose classes differ."""

import torch
from torch import nn

import fafed

torch.manual_seed(0)
centres = 3 * torch.randn(4, 10)


def client(classes: tuple[int, ...], examples: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    targets = torch.tensor(classes)[torch.randint(len(classes), (examples,))]
    return centres[targets] + torch.randn(examples, 10), targets


# --8<-- [start:train]
result = fafed.train(
    nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)),
    clients=[client((0, 1)), client((1, 2)), client((2, 3)), client((3, 0))],
    algorithm=fafed.FAFED(eta=0.01, alpha=0.1),
    rounds=30,
    local_steps=5,
    batch_size=20,
    test=client((0, 1, 2, 3), 1000),
    metrics={"accuracy": fafed.metrics.accuracy},
)
# --8<-- [end:train]
for record in result.history[4::5]:
    print(f"round {record.round:2}  loss {record.train_loss:.4f}  {dict(record.test)}")
