import pytest
import torch

from fafed.data.datasets import wikitext2
from fafed.data.datasets.base import Text
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


def test_a_text_with_its_most_frequent_words():
    vocabulary = Vocabulary()
    ids = tokenised(TEXT, vocabulary)
    text = Text(ids, tokenised("the title sees", vocabulary), ids[-2:], tuple(vocabulary))
    few = text.with_words(4)
    assert few.vocabulary == ("<unk>", "<eos>", "=", "the")  # of equally frequent ones the first
    assert few.train.tolist() == [1, 2, 0, 2, 1, 3, 0, 0, 3, 0, 1]
    assert few.valid.tolist() == [3, 0, 0]
    assert few.test.tolist() == [0, 1]
    every = text.with_words(100)
    assert every.vocabulary == ("<unk>", "<eos>", "=", "the", "Title", "sees", "title")
    words = [every.vocabulary[i] for i in every.train]
    assert words == [text.vocabulary[i] for i in text.train]


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
