import pytest
import torch

from fafed.data.datasets import wikitext2
from fafed.data.datasets.wikitext2 import Vocabulary, tokenised
from fafed.errors import DataError

TEXT = " \n = Title = \n the <unk> sees the title \n"


def test_words_are_numbered_by_first_appearance():
    vocabulary = Vocabulary()
    ids = tokenised(TEXT, vocabulary)
    assert ids.tolist() == [0, 1, 2, 1, 0, 3, 4, 5, 3, 6, 0]
    assert ids.dtype == torch.int64
    assert tuple(vocabulary) == ("<eos>", "=", "Title", "the", "<unk>", "sees", "title")
    assert tokenised("a title \n", vocabulary).tolist() == [7, 6, 0]


@pytest.mark.parametrize("form", ["{}.txt", "wiki.{}.tokens"])
def test_unpack(tmp_path, form):
    for part in ("train", "valid", "test"):
        (tmp_path / form.format(part)).write_text(part)
    assert list(wikitext2.unpack(tmp_path)) == [
        ("train.txt", b"train"),
        ("valid.txt", b"valid"),
        ("test.txt", b"test"),
    ]


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"no train\.txt or wiki\.train\.tokens"):
        list(wikitext2.unpack(tmp_path))


def test_real(real):
    text = real("wikitext-2")
    assert [len(part) for part in (text.train, text.valid, text.test)] == [
        2_088_628,
        217_646,
        245_569,
    ]
    assert len(text.vocabulary) == 33_278 == text.train.max() + 1
    assert (
        "".join(text.vocabulary[i] for i in text.train[:7]) == "<eos>=ValkyriaChroniclesIII=<eos>"
    )
