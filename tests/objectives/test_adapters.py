"""Models of transformers, built from a configuration, with adapters of peft."""

from __future__ import annotations

import functools

import pytest
import torch

import fafed
from fafed.algorithms import ALGORITHMS

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # peft calls old names of transformers
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

WORDS, LENGTH = 24, 10


def gpt2(seed=0, **options):
    torch.manual_seed(seed)
    settings = {"vocab_size": WORDS, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "loss_type": "ForCausalLM"}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, **ends, **options))


def lora(model=None, **options):
    settings = {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True, **options}
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    model, _ = gpt2() if model is None else model, torch.manual_seed(1)
    return peft.get_peft_model(model, config)


def client(n=8, seed=0):
    ids = torch.randint(0, WORDS, (n, LENGTH), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


CLIENTS = [client(seed=s) for s in range(2)]


def train(model, algorithm=None, **options):
    call = {"rounds": 1, "local_steps": 2, "batch_size": 4, "loss": "model", **options}
    return fafed.train(model, CLIENTS, algorithm or fafed.FedAvg(eta=0.1), **call)


@functools.cache
def adapted():
    return lora()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_adapters(name):
    algorithm = ALGORITHMS[name]()
    model = adapted()
    clients = CLIENTS[: algorithm.population or 2]
    found = fafed.train(
        model, clients, algorithm, rounds=2, local_steps=2, batch_size=4, loss="model", workers=1
    )
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])
    assert found.x.numel() == start.numel() == 2 * (2 * 16 + 2 * 48)
    assert found.x.isfinite().all()
    assert not torch.equal(found.x, start)
    assert found.engine == "loop"  # attention masks depend on numbers, which vmap cannot do


def test_only_the_adapters_are_trained_and_the_rest_is_as_it_was():
    model = lora()
    found = train(model).model
    for name, value in found.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]) == ("lora" not in name), name


def test_the_steps_are_those_of_a_plain_loop():
    model = lora(gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    found = fafed.train(
        model,
        CLIENTS[:1],
        fafed.FedAvg(eta=0.1),
        rounds=3,
        local_steps=1,
        batch_size="full",
        loss="model",
    )
    own = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(own, lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(**CLIENTS[0]).loss.backward()
        optimiser.step()
    flat = torch.cat([p.detach().reshape(-1) for p in own])
    torch.testing.assert_close(found.x, flat, rtol=1e-5, atol=1e-6)


def test_tied_weights_are_one():
    model = gpt2()
    assert model.lm_head.weight is model.transformer.wte.weight
    found = train(model)
    assert found.x.numel() == sum(p.numel() for p in model.parameters())
    assert found.model.lm_head.weight is found.model.transformer.wte.weight


def test_a_bfloat16_base_under_float32_adapters():
    model = lora(gpt2().bfloat16())
    found = train(model)
    assert found.x.dtype == torch.float32
    kinds = {name: p.dtype for name, p in found.model.named_parameters()}
    assert kinds == {name: p.dtype for name, p in model.named_parameters()}


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_no_number(reentrant):
    plain, kept = (gpt2(attn_implementation="eager") for _ in range(2))
    kept.gradient_checkpointing_enable({"use_reentrant": reentrant})
    found = train(lora(kept, lora_dropout=0.2))
    torch.testing.assert_close(found.x, train(lora(plain, lora_dropout=0.2)).x)


@pytest.mark.parametrize("kind", ["ia3", "prefix"])
def test_other_adapters(kind):
    if kind == "ia3":
        config = peft.IA3Config(
            task_type="CAUSAL_LM",
            target_modules=["c_attn"],
            feedforward_modules=[],
            fan_in_fan_out=True,
        )
    else:
        config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    model = peft.get_peft_model(gpt2(), config)
    found = train(model)
    assert found.x.numel() == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert found.x.isfinite().all()


def test_a_classifier_and_its_accuracy():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
    )
    model = transformers.BertForSequenceClassification(config)
    clients = [c | {"labels": torch.arange(8) % 3} for c in CLIENTS]
    found = fafed.train(
        model,
        clients,
        fafed.FedAvg(eta=0.1),
        rounds=1,
        local_steps=1,
        batch_size=4,
        loss="model",
        test=clients[0],
        metrics={"accuracy": fafed.metrics.accuracy},
    )
    with torch.no_grad():
        right = found.model(**clients[0]).logits.argmax(-1) == clients[0]["labels"]
    assert found.history[-1].test["accuracy"] == pytest.approx(float(right.double().mean()))
