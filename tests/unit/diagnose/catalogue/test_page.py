"""Pages: the form is kept or refused with the reason, a word finds its page, and it reads well in a terminal."""

import json
import re

import pytest

from paceline.diagnose.catalogue import shelf
from paceline.diagnose.catalogue.shelf import PageError, parse
from paceline.text.json_text import json_text

TEXT = """# port-in-use

## What
The port is taken. The process that holds it is named where it can be seen, and where it cannot, the message says that.

## Why
Two stores cannot share a port.

## What to do
1. End the other process.
2. Take another port:

```bash
# on every node
paceline run --master-port 29501 train.py
```

## When it is wrong
- Never; see [the manual](https://example.org/manual).

## References
- https://example.org/ports
- torch: TCPStore
"""


def test_a_text_is_parsed_into_its_sections():
    page = parse(TEXT, "port-in-use")
    assert (page.name, page.code) == ("port-in-use", "NET001")
    assert page.why == "Two stores cannot share a port."
    assert page.fix.splitlines()[-2:] == ["paceline run --master-port 29501 train.py", "```"]
    assert page.references == ("https://example.org/ports", "torch: TCPStore")


def test_a_page_is_plain_data_as_json():
    content = json.loads(json_text(parse(TEXT, "port-in-use")))
    assert list(content) == ["code", "name", "what", "why", "fix", "wrong", "references"]
    assert content["wrong"].startswith("- Never")


def test_a_page_is_rendered_for_a_terminal():
    assert parse(TEXT, "port-in-use").render().splitlines() == [
        "NET001 port-in-use",
        "",
        "What",
        "  The port is taken. The process that holds it is named where it can be seen, and where it cannot,",
        "  the message says that.",
        "",
        "Why",
        "  Two stores cannot share a port.",
        "",
        "What to do",
        "  1. End the other process.",
        "  2. Take another port:",
        "",
        "      # on every node",
        "      paceline run --master-port 29501 train.py",
        "",
        "When it is wrong",
        "  - Never; see the manual (https://example.org/manual).",
        "",
        "References",
        "  - https://example.org/ports",
        "  - torch: TCPStore",
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("# port-in-use\n", "# port-refused\n", "the first line is '# port-in-use'"),
        ("# port-in-use\n", "", "the first line is '# port-in-use'"),
        ("# port-in-use\n", "# port-in-use\nAnd a word.\n", "the first line is"),
        ("## Why\nTwo stores cannot share a port.\n", "", "the sections are What, Why"),
        ("## Why", "## Reason", "not What, Reason, What to do"),
        ("Two stores cannot share a port.", "", "the section Why is empty"),
        ("Two stores", "### Stores\nTwo stores", "a heading that is not a section: '### Stores'"),
        ("- torch: TCPStore", "torch: TCPStore", "a reference is a line that starts with '- '"),
        ("train.py\n```", "train.py", "a fenced block has no end"),
    ],
)
def test_a_text_that_does_not_keep_the_form_is_refused(old, new, reason):
    assert old in TEXT
    with pytest.raises(PageError, match=re.escape(reason)):
        parse(TEXT.replace(old, new), "port-in-use")


def test_a_page_of_an_unknown_name_is_refused():
    with pytest.raises(PageError, match="no finding has this name"):
        parse(TEXT, "port-is-in-use")
    with pytest.raises(KeyError):
        shelf.page("port-is-in-use")


@pytest.mark.parametrize(
    "word",
    [
        "NET001",
        "net001",
        "port-in-use",
        "Port-In-Use",
        "port_in_use",
        "`NET001`",
        "NET001:",
        "[NET001 port-in-use]",
        " port-in-use. ",
    ],
)
def test_a_word_finds_its_page(word):
    page = shelf.find(word)
    assert page == shelf.page("port-in-use")


@pytest.mark.parametrize(
    "word",
    [
        "",
        "-",
        "nonsense",
        "NET999",
        "NET001 NET002",
        "port-in-use.log",
        "runs/port-in-use",
        "port in use",
    ],
)
def test_another_word_finds_nothing(word):
    assert shelf.find(word) is None
