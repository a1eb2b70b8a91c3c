"""What a dataset is: its tensors, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: normalised float32 inputs (N, C, H, W) and int64 targets (N,)."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: tuple[str, ...]


UNKNOWN = "<unk>"  # the word in place of one that a vocabulary does not have


@dataclass(frozen=True, eq=False)
class Text:
    """Streams of int64 token ids; `vocabulary[i]` is the word of id i."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: tuple[str, ...]

    def with_words(self, words: int) -> Text:
        """The text with so many words: the most frequent ones of the training text, and `<unk>` for
        all others. `<unk>` has the id 0, the most frequent word 1."""
        counts = torch.bincount(self.train, minlength=len(self.vocabulary))
        order = counts.argsort(descending=True, stable=True).tolist()
        kept = [i for i in order if self.vocabulary[i] != UNKNOWN][: words - 1]
        ids = torch.zeros(len(self.vocabulary), dtype=torch.int64)
        ids[kept] = torch.arange(1, len(kept) + 1)
        vocabulary = (UNKNOWN, *(self.vocabulary[i] for i in kept))
        return Text(ids[self.train], ids[self.valid], ids[self.test], vocabulary)


@dataclass(frozen=True, eq=False)
class Tables:
    """A table for each of several sites. Their fields are text, as in the files."""

    columns: tuple[str, ...]
    sites: Mapping[str, Sequence[tuple[str, ...]]]  # site -> rows


@dataclass(frozen=True)
class Download:
    """One file on the dataset's own servers. Any of the `urls` will do."""

    name: str
    size: int
    sha256: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where a dataset can be downloaded, and what the cache keeps of it."""

    files: Mapping[str, str]  # what the cache keeps: file name -> sha256
    downloads: tuple[Download, ...]
    unpack: Callable[[Path], Iterator[tuple[str, bytes]]]  # local files, any known form -> `files`


@dataclass(frozen=True)
class Package:
    """A Python package whose folder holds a dataset."""

    distribution: str  # what pip installs
    module: str
    in_clone: str  # its folder in a clone of fafed


@dataclass(frozen=True)
class Dataset:
    name: str
    description: str
    licence: str
    read: Callable[[Path], Images | Text | Tables]  # from its folder; checks what it reads
    origin: Origin
    package: Package | None = None
    text: bool = False  # whether `read` returns Text
    tables: bool = False  # whether `read` returns Tables


def labelled(
    pixels: Pixels, labels: Pixels, mean: Sequence[float], std: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Pixels (N, C, H, W) in 0..255 as (x / 255 - mean) / std per channel, and their targets."""
    inputs = torch.from_numpy(pixels).to(torch.float32).div_(255)  # one copy, then in place
    inputs.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))
    return inputs, torch.from_numpy(labels.astype(np.int64))
