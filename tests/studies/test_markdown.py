"""One Markdown writer for the pages of all studies."""

from __future__ import annotations

import pytest

from fafed.errors import FafedError
from studies import markdown


def test_tables():
    assert markdown.table(["a", "b"], [(1, "x|y"), ("c", 2.5)]) == (
        "| a | b |\n| --- | --- |\n| 1 | x\\|y |\n| c | 2.5 |\n"
    )
    assert markdown.table(["a", "b", "c"], [], right=True).splitlines()[1] == (
        "| --- | ---: | ---: |"
    )


def test_a_marked_part_is_replaced():
    page = "Before\n<!-- one -->\nold\n<!-- /one -->\nbetween\n<!-- a:two --><!-- /a:two -->\n"
    assert markdown.part_names(page) == ["one", "a:two"]
    page = markdown.replace_part(page, "a:two", "second\npart")
    page = markdown.replace_part(page, "one", "first\n")
    assert page == (
        "Before\n<!-- one -->\nfirst\n<!-- /one -->\nbetween\n"
        "<!-- a:two -->\nsecond part\n<!-- /a:two -->\n"
    )
    assert markdown.replace_part(page, "one", "first") == page
    with pytest.raises(FafedError, match="no part 'three' to replace"):
        markdown.replace_part(page, "three", "")


def test_text_is_filled_and_all_else_stays():
    text = """\
# A heading of more than twenty characters

one two three four five six
seven

| a table | of more than twenty |

- an item of a list that
  is long
- `code that is not broken`
1. a number

```
code of more than twenty characters

    and    a blank line
```

    indented code of more than twenty
"""
    assert (
        markdown.wrap(text, 20)
        == """\
# A heading of more than twenty characters

one two three four
five six seven

| a table | of more than twenty |

- an item of a list
  that is long
- `code that is not broken`
1. a number

```
code of more than twenty characters

    and    a blank line
```

    indented code of more than twenty
"""
    )
    assert markdown.wrap(markdown.wrap(text, 20), 20) == markdown.wrap(text, 20)


@pytest.mark.parametrize("mark", ["-", "+", "*", "#", "12."])
def test_no_line_begins_like_a_list_that_is_none(mark):
    assert markdown.wrap(f"aaaa bbbb {mark} cccc dddd", 10) == f"aaaa\nbbbb {mark}\ncccc dddd\n"
