"""WikiText-2 (Merity et al. 2016, https://arxiv.org/abs/1609.07843), words with <unk>.

Each line is split on white space and ends with <eos>. Words are numbered by their first appearance
in train, valid, test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fafed.data.datasets.base import Dataset, Download, Origin, Text
from fafed.data.datasets.cache import content, find, verified

URL = "https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2"
SHA256 = {
    "train.txt": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid.txt": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test.txt": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}
SIZES = {"train.txt": 10_797_148, "valid.txt": 1_121_681, "test.txt": 1_256_449}


class Vocabulary(dict[str, int]):
    """Word -> id. A new word gets the next id."""

    def __missing__(self, word: str) -> int:
        self[word] = len(self)
        return self[word]


def tokenised(text: str, vocabulary: Vocabulary) -> Tensor:
    words = text.replace("\n", " <eos> ").split()
    return torch.tensor([vocabulary[word] for word in words])


def read(folder: Path) -> Text:
    vocabulary = Vocabulary()
    train, valid, test = (
        tokenised(verified(folder / name, sha256).decode(), vocabulary)
        for name, sha256 in SHA256.items()
    )
    return Text(train, valid, test, tuple(vocabulary))


def unpack(source: Path) -> Iterator[tuple[str, bytes]]:
    """From train.txt, valid.txt, test.txt, or wiki.train.tokens and so on."""
    for name in SHA256:
        yield name, content(find(source, name, f"wiki.{Path(name).stem}.tokens"))


WIKITEXT2 = Dataset(
    name="wikitext-2",
    description="2,088,628 + 217,646 + 245,569 words of Wikipedia, vocabulary of 33,278",
    licence="CC BY-SA 3.0 and GFDL",
    read=read,
    text=True,
    origin=Origin(
        files=SHA256,
        downloads=tuple(
            Download(name, SIZES[name], sha256, (f"{URL}/{name}",))
            for name, sha256 in SHA256.items()
        ),
        unpack=unpack,
    ),
)
