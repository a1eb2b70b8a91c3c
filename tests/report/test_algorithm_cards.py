"""docs/algorithms.md is what the code says, and the code says something about every method."""

from __future__ import annotations

from pathlib import Path

import pytest

from fafed import ALGORITHMS, FAFED, SCAFFOLD, FedAvg
from fafed.report.algorithm_cards import _adapts, _advice, _fenced, cards, markdown

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
CARDS = {card.name: card for card in cards()}


def test_the_page_is_the_one_that_the_code_generates():
    assert PAGE.read_text("utf-8") == markdown(list(CARDS.values())), (
        "fafed algorithms --markdown > docs/algorithms.md"
    )


def test_every_method_says_when_to_use_it_and_what_to_beware_of():
    for found in CARDS.values():
        assert found.what.endswith(".")
        assert found.use.startswith("Use it when ")
        assert found.beware.startswith("Beware: ")
        lines = (ALGORITHMS[found.name].__doc__ or "").strip().splitlines()
        assert len([line for line in lines if line.strip()]) <= 6


def test_a_docstring_of_another_shape_is_refused():
    class Silent(FedAvg):
        """Says nothing about its use."""

    with pytest.raises(ValueError, match="Silent is not"):
        _advice(Silent)


def test_every_method_has_a_section_with_its_settings():
    page = PAGE.read_text("utf-8")
    for name, cls in ALGORITHMS.items():
        _, _, section = page.partition(f"# {cls.__name__}\n")
        section = section.partition("\n## ")[0].partition("\n### ")[0]
        assert f'name = "{name}"' in section
        own = "fafed's own" in section
        assert own == (name == "fedkron")
        assert own or "https://arxiv.org/abs/" in section
        assert all(f"| `{setting.name}` |" in section for setting in CARDS[name].settings)


@pytest.mark.parametrize(
    ("names", "where"),
    [
        ("fedavg prsgdm fedprox fedpd scaffold stem mime mimelite fedglomo domo", "no"),
        ("fedadam fedyogi fedadagrad fedams fedcams", "server"),
        ("fafed localamsgrad mimeadam", "local, shared"),
        ("naive", "local, private"),
        ("adam amsgrad storm spider superadam", "local"),
    ],
)
def test_where_methods_adapt(names, where):
    assert {CARDS[name].adapts for name in names.split()} == {where}


def test_adaptivity_is_measured_not_declared():
    assert _adapts(FAFED(adaptivity="identity")) == "no"
    assert _adapts(FAFED(adaptivity="global")) == "local, shared"


def test_what_is_kept():
    kept = {found.name: (found.kept, found.server) for found in CARDS.values()}
    assert kept["fedavg"] == (0, 1)
    assert kept["fafed"] == (1, 3)
    assert kept["fedams"] == (0, 4)
    assert kept["fedpd"] == (2, 1)
    assert kept["superadam"] == (3, 1)


def test_a_pass_over_the_data_is_not_a_local_step():
    assert (CARDS["mime"].gradients, CARDS["mime"].besides) == (2, ("full",))
    assert (CARDS["fedglomo"].gradients, CARDS["fedglomo"].besides) == (4, ())


def test_who_must_be_there():
    for name in ("scaffold", "fedpd", "domo"):
        assert CARDS[name].requires_all_clients
    for name in ("fedavg", "fafed", "stem", "mime"):
        assert not CARDS[name].requires_all_clients
    assert not SCAFFOLD(wire="full").requires_all_clients
    for name in ("adam", "amsgrad", "storm", "spider", "superadam"):
        assert CARDS[name].population == 1


def test_indented_blocks_become_one_fenced_block():
    text = "Before:\n\n    a\n      b\n\n    c\n\nAfter."
    assert _fenced(text) == "Before:\n\n```text\na\n  b\n\nc\n```\n\nAfter.\n"
