"""A small GPT-2 that reads bytes, and three clients who write different kinds of text.

`model` and `data` are what an experiment file names. `run.py` uses them in simulation, and
`experiment.toml` in silos.
"""

import random

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

LENGTH = 32  # bytes in an example

PUBLIC = """
The morning was cold and the streets were empty. A man walked along the river and thought about the
day before him. He had a letter to write and a train to catch. The shops would open at nine, and the
library at ten. She said that she would wait for him near the old bridge, where the water is slow.
They spoke about the weather, about their work, and about the people that they knew. In the evening
there was music in the square, and children played between the tables until it was dark.
At 8:45 the train left for TOWN 17 with 230 people: 96 from WEST, 134 from NORTH. Bread was 2 coins,
soup 5, a room 40. The list had 6 names, 3 dates (12/05, 19/07, 28/10) and 1 ERROR at line 51.
"""


def weather(draw: random.Random) -> str:
    place = draw.choice(["North coast", "Highlands", "South valley", "Islands"])
    sky = draw.choice(["rain", "sun", "clouds", "snow", "fog"])
    return f"{place}: {sky}, {draw.randint(-9, 29)} degrees, wind {draw.randint(2, 60)} km/h. "


def recipe(draw: random.Random) -> str:
    food = draw.choice(["flour", "butter", "sugar", "milk", "rice", "onions"])
    verb = draw.choice(["stir", "bake", "boil", "cool", "mix"])
    return f"Take {draw.randint(1, 9)}00 g of {food} and {verb} for {draw.randint(2, 45)} minutes. "


def log(draw: random.Random) -> str:
    level = draw.choice(["INFO", "WARN", "ERROR"])
    what = draw.choice(["disk full", "login ok", "timeout", "restart", "job done"])
    return f"12:{draw.randint(10, 59)} {level} host{draw.randint(1, 9)}: {what}\n"


# --8<-- [start:data]
def examples(text: str) -> dict[str, Tensor]:
    """Windows of the text. The model predicts each byte from the ones before it."""
    known = torch.tensor(list(text.encode("ascii")))
    rows = known[: len(known) // LENGTH * LENGTH].view(-1, LENGTH)
    return {"input_ids": rows, "labels": rows.clone()}


# --8<-- [end:data]


def data(size: int = 200) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """Three clients with about `size` examples each, and a test set with text of each kind."""
    clients, tests = [], []
    for number, write in enumerate([weather, recipe, log]):
        draw = random.Random(number)
        text = ""
        while len(text) < (size + 40) * LENGTH:
            text += write(draw)
        rows = examples(text)
        clients.append({name: part[40:] for name, part in rows.items()})
        tests.append({name: part[:40] for name, part in rows.items()})
    return clients, {name: torch.cat([test[name] for test in tests]) for name in tests[0]}


def base(steps: int) -> nn.Module:
    """A model that has read a little English. Yours would come from `from_pretrained`."""
    ends = {"bos_token_id": 0, "eos_token_id": 0, "loss_type": "ForCausalLM"}
    size = {"vocab_size": 128, "n_positions": LENGTH, "n_embd": 48, "n_layer": 2, "n_head": 4}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**size, **ends, **dropout))
    rows = examples(PUBLIC * 5)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        some = {name: part[step % 4 :: 4] for name, part in rows.items()}
        optimiser.zero_grad()
        model(**some).loss.backward()
        optimiser.step()
    return model


# --8<-- [start:model]
def model(rank: int = 8, steps: int = 100) -> nn.Module:
    """The base with adapters. Only the adapters are trained, and only they travel."""
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank,
        target_modules=["c_attn", "c_proj", "c_fc"],
        fan_in_fan_out=True,
    )
    return get_peft_model(base(steps), config)


# --8<-- [end:model]
