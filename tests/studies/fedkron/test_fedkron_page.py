"""docs/fedkron.md says what the results say."""

from __future__ import annotations

import copy

import pytest

from studies.fedkron import networks, page, sections
from studies.fedkron.ledger import Ledger


@pytest.fixture(scope="module")
def found():
    return page.read()


def test_the_page_is_the_one_that_the_results_give(found):
    assert page.PAGE.read_text("utf-8") == page.render(*found), "python -m studies.fedkron"


def test_worse_numbers_do_not_read_as_a_victory(found):
    own, which = copy.deepcopy(found[0]), found[1]
    for entry in own["default"].values():
        entry["accuracy"] = [0.5, 0.5, 0.5]
    text = page.render(own, which)
    assert "in 0 of 3 settings" in " ".join(text.split())
    assert "not clearly first:" in text
    won = sections.standing(dict(networks.there(Ledger(networks.RESULTS))))[1]
    assert f"FedKron is first on {len(won) + page._first_on_resnet()}." in " ".join(text.split())


def test_a_target_that_was_not_reached_says_so(found):
    own = copy.deepcopy(found[0])
    own["default"]["skewed"]["to_target"] = {}
    cells = [page.render(one, found[1]).count("| not reached |") for one in (found[0], own)]
    assert cells[1] == cells[0] + 1  # of rounds; the next cell shares its border
