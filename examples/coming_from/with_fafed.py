"""The small job in fafed.

python examples/coming_from/with_fafed.py
"""

import job

import fafed

# --8<-- [start:job]
result = fafed.train(
    job.model(),
    [job.client(i) for i in range(job.CLIENTS)],
    fafed.FedAvg(eta=job.ETA),
    rounds=job.ROUNDS,
    local_epochs=job.EPOCHS,
    batch_size=job.BATCH,
    weights="examples",
    test=job.test_set(),
    metrics={"accuracy": fafed.metrics.accuracy},
)
print(f"accuracy {job.accuracy(result.model):.3f}")
# --8<-- [end:job]
