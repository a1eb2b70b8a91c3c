"""Batches that are mappings: called by name, with the model's own loss or a function of both."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassF1Score

import fafed
from fafed.core.batch import Batch
from fafed.objectives.module import Model


class Tagger(nn.Module):
    """A score per token and class, and a loss as transformers compute it."""

    def __init__(self, shift=False):
        super().__init__()
        self.words, self.scores, self.shift = nn.Embedding(9, 4), nn.Linear(4, 5), shift

    def forward(self, input_ids, labels=None, attention_mask=None):
        logits = self.scores(self.words(input_ids))
        if attention_mask is not None:
            logits = logits * attention_mask[..., None]
        loss = None
        if labels is not None:
            kept, goal = (logits[:, :-1], labels[:, 1:]) if self.shift else (logits, labels)
            loss = F.cross_entropy(kept.reshape(-1, 5), goal.reshape(-1))
        return SimpleNamespace(loss=loss, logits=logits)


class Plain(Tagger):
    """The same for batches that are tuples."""

    def forward(self, input_ids):
        return super().forward(input_ids).logits.movedim(-1, 1)


def tagger(kind=Tagger, **options):
    torch.manual_seed(0)
    return kind(**options).double()


def client(n=12, seed=0, ignored=0.3):
    noise = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 5, (n, 6), generator=noise)
    labels[torch.rand(n, 6, generator=noise) < ignored] = -100
    return {"input_ids": torch.randint(0, 9, (n, 6), generator=noise), "labels": labels}


CLIENTS = [client(seed=i) for i in range(3)]
CALL = {"rounds": 2, "local_steps": 2, "batch_size": 4}


def train(module, clients=CLIENTS, **options):
    options = {"loss": "model", "algorithm": fafed.FAFED(eta=0.01), **CALL, **options}
    return fafed.train(module, clients, **options)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_mapping_gives_the_numbers_of_a_tuple(engine):
    tuples = [(c["input_ids"], c["labels"]) for c in CLIENTS]
    options = {"engine": engine, "metrics": {"accuracy": fafed.metrics.accuracy}}
    plain = train(tagger(Plain), tuples, loss=F.cross_entropy, test=tuples[0], **options)
    found = train(tagger(), test=CLIENTS[0], **options)
    torch.testing.assert_close(found.x, plain.x, rtol=1e-12, atol=1e-14)
    for name in ("loss", "accuracy"):
        assert found.history[-1].test[name] == pytest.approx(plain.history[-1].test[name])


def test_a_loss_of_output_and_batch():
    def own(output, batch):
        return F.cross_entropy(output.logits.reshape(-1, 5), batch["labels"].reshape(-1))

    torch.testing.assert_close(train(tagger(), loss=own).x, train(tagger()).x)


class Judge(nn.Linear):
    """A score for each class, as classifiers of transformers return it."""

    def forward(self, x, labels):
        logits = super().forward(x)
        return SimpleNamespace(loss=F.cross_entropy(logits, labels), logits=logits)


def test_objects_of_torchmetrics_get_logits_and_labels():
    """Objects of one's own get the output and the batch."""

    class Seen:
        def reset(self):
            self.found = []

        def update(self, output, batch):
            self.found.append(len(output.logits) == len(batch["x"]))

        def compute(self):
            return float(all(self.found))

    data = {"x": torch.randn(12, 3), "labels": torch.arange(12) % 4}
    metrics = {"f1": MulticlassF1Score(4), "ours": fafed.metrics.f1, "seen": Seen()}
    found = train(Judge(3, 4), [data], test=data, metrics=metrics).history[-1].test
    assert found["f1"] == pytest.approx(found["ours"])
    assert found["seen"] == 1


def test_auto_takes_vmap_for_a_small_model():
    assert train(tagger()).engine == "vmap"


def test_datasets_whose_items_are_mappings():
    rows = [[{k: v[i] for k, v in c.items()} for i in range(12)] for c in CLIENTS]

    class Rows(torch.utils.data.Dataset):
        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

        def __getitem__(self, i):
            return self.items[i]

    lazy = train(tagger(), [Rows(items) for items in rows])  # read batch by batch, in the loop
    assert torch.equal(lazy.x, train(tagger(), engine="loop").x)


def test_the_order_of_names_does_not_matter():
    turned = [CLIENTS[0], *(dict(reversed(c.items())) for c in CLIENTS[1:])]
    assert torch.equal(train(tagger(), turned).x, train(tagger()).x)


@pytest.mark.parametrize("shift", [False, True])
def test_means_over_several_batches_weight_the_labels_that_count(shift):
    """The loss on a test set does not depend on how it is cut into batches."""
    module = tagger(shift=shift)
    parts = [client(4, seed=1, ignored=0.0), client(4, seed=2, ignored=0.9)]
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    goal = Model(module, "model")
    key, fresh = torch.tensor(0), torch.tensor(True)
    batches = [Batch(part, key, fresh) for part in parts]
    goal.probe(batches[0])
    assert goal.shifted == shift
    accuracy = {"accuracy": fafed.metrics.accuracy}
    apart = goal.totals(goal.x0, (), batches, accuracy).sums
    at_once = goal.totals(goal.x0, (), [Batch(whole, key, fresh)], accuracy).sums
    count = int((whole["labels"][:, int(shift) :] != -100).sum())
    for name in ("loss", "accuracy"):
        assert apart[name][1] == at_once[name][1] == count
        assert apart[name][0] == pytest.approx(at_once[name][0])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_a_batch_without_labels_that_count_has_no_gradient(engine):
    nothing = client() | {"labels": torch.full((12, 6), -100)}
    nothing["labels"][0, 0] = 1
    found = train(tagger(), [nothing, nothing], batch_size=1, engine=engine)
    assert found.x.isfinite().all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(fafed.ConfigError, match=r"mappings with 'input_ids'.*loss='model'"):
        train(tagger(), loss=F.cross_entropy)
    with pytest.raises(fafed.ConfigError, match=r"CrossEntropyLoss compares"):
        train(tagger(), loss=nn.CrossEntropyLoss())
    tuples = [(c["input_ids"], c["labels"]) for c in CLIENTS]
    with pytest.raises(fafed.ConfigError, match="needs batches that are mappings"):
        train(tagger(Plain), tuples)
    unlabelled = [{"input_ids": c["input_ids"]} for c in CLIENTS]
    with pytest.raises(fafed.ConfigError, match="without a loss"):
        train(tagger(), unlabelled)
    with pytest.raises(fafed.ConfigError, match="unexpected keyword argument 'words'"):
        train(tagger(), [{"words": c["input_ids"], "labels": c["labels"]} for c in CLIENTS])
    with pytest.raises(fafed.ConfigError, match="got 'modle'"):
        train(tagger(), loss="modle")
    with pytest.raises(fafed.ConfigError, match="function of \\(output, batch\\)"):
        train(tagger(), loss=lambda output, batch: output.logits - batch["labels"])


def test_data_that_do_not_fit_are_refused():
    other = {"input_ids": CLIENTS[0]["input_ids"], "goal": CLIENTS[0]["labels"]}
    with pytest.raises(fafed.DataError, match=r"clients disagree.*labels.*goal"):
        train(tagger(), [CLIENTS[0], other])
    with pytest.raises(fafed.DataError, match="test: it has the names"):
        train(tagger(), test=other)
    with pytest.raises(fafed.DataError, match="client 0 has tensors of 12, 3 rows"):
        train(tagger(), [CLIENTS[0] | {"labels": CLIENTS[0]["labels"][:3]}])
    with pytest.raises(fafed.DataError, match="label 7, but the model has 5 outputs"):
        train(tagger(), [CLIENTS[0], CLIENTS[1] | {"labels": torch.full((12, 6), 7)}])
