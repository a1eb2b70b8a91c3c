"""The small job in FedML 0.9.6, in simulation in one process.

python examples/coming_from/with_fedml.py --cf examples/coming_from/with_fedml.yaml
"""

import fedml
import job
from fedml import FedMLRunner
from torch.utils.data import DataLoader, TensorDataset


# --8<-- [start:job]
def loader(pair):
    return DataLoader(TensorDataset(*pair), job.BATCH, shuffle=True)


args = fedml.init()  # reads the file that --cf names
clients = {i: loader(job.client(i)) for i in range(job.CLIENTS)}
test = loader(job.test_set())
counts = {i: len(data.dataset) for i, data in clients.items()}
dataset = [
    sum(counts.values()),
    len(test.dataset),
    None,  # all training data in one loader, for central training
    test,
    counts,
    clients,
    dict.fromkeys(clients, test),  # each client's own test data
    4,  # classes
]
model = job.model()
FedMLRunner(args, fedml.device.get_device(args), dataset, model).run()
print(f"accuracy {job.accuracy(model):.3f}")
# --8<-- [end:job]
