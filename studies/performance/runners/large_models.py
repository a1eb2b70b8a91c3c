"""Models as people have them: a ResNet-18, a small BERT, and a small GPT-2 with LoRA.

fafed and the plain loop build them with the same functions, from a fixed seed, because a frozen
base is not part of the vector. There is no dropout: each program would draw masks of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions and a shortcut, with GroupNorm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(2, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(2, outputs)
        nn.init.zeros_(self.norm2.weight)  # or rounding alone would drive two programs apart
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(2, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18GN(nn.Module):
    """For images of 32 x 32 pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(2, width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for stage in range(4):
            stride = 1 if stage == 0 else 2
            blocks.append(Block(widths[stage], widths[stage + 1], stride))
            blocks.append(Block(widths[stage + 1], widths[stage + 1], 1))
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        return self.last(x.mean((2, 3)))


class Logits(nn.Module):
    """A model of transformers as a function of the token numbers alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Any:
        return self.model(input_ids=tokens).logits


def resnet18_gn(width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return ResNet18GN(width)


def bert(vocabulary: int, layers: int = 4, width: int = 512) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=10,
    )
    return Logits(BertForSequenceClassification(config))


def gpt2_lora(vocabulary: int, layers: int = 12, width: int = 768, rank: int = 8) -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=128,
        n_embd=width,
        n_layer=layers,
        n_head=max(1, width // 64),
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    adapters = LoraConfig(r=rank, target_modules=["c_attn"], fan_in_fan_out=True)
    return Logits(get_peft_model(GPT2LMHeadModel(config), adapters))


MODELS = {"resnet18_gn": resnet18_gn, "bert": bert, "gpt2_lora": gpt2_lora}
PREFIX = "studies.performance.runners.large_models:"  # how fafed names them
