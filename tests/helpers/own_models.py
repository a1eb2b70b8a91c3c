"""Models as users have them: tied weights, frozen parts, adapters on a language model."""

from __future__ import annotations

import torch
from torch import nn


class Tied(nn.Module):
    """One weight under two names, a layer used twice, a frozen layer, and buffers."""

    def __init__(self, frozen: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.again = self.first
        self.norm = nn.BatchNorm1d(6)
        self.fixed = nn.Linear(6, 6).requires_grad_(not frozen)
        self.out = nn.Linear(6, 3)
        self.head = nn.Linear(6, 3)
        self.head.weight = self.out.weight
        self.register_buffer("scratch", torch.ones(1), persistent=False)

    def forward(self, x):
        x = self.norm(self.again(self.fixed(self.first(x))))
        return self.out(x) + self.head(x)


class Half(nn.Module):
    """A bfloat16 model, which is trained on a float32 copy."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3).bfloat16()

    def forward(self, x):
        return self.linear(x)


def base():
    """A tiny language model from a configuration, and what its weights are without an adapter."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    config = GPT2Config(**sizes, **ids, num_labels=3)
    return GPT2ForSequenceClassification(config)


class Adapted(nn.Module):
    """The language model with a LoRA adapter, as a classifier of six numbers."""

    def __init__(self) -> None:
        super().__init__()
        from peft import LoraConfig, TaskType, get_peft_model

        lora = LoraConfig(
            task_type=TaskType.SEQ_CLS, r=2, target_modules=["c_attn"], fan_in_fan_out=True
        )
        self.model = get_peft_model(base(), lora)

    def forward(self, x):
        return self.model(inputs_embeds=tokens(x)).logits


def tokens(x):
    """Six numbers as six embedded tokens."""
    return x.unsqueeze(-1) * torch.ones(8, device=x.device)
