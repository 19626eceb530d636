"""Look up the page of a finding by code or name, read only that file, and parse and render it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.codes import CODES
from paceline.text.wording import wrapped

TEXTS = Path(__file__).with_name("texts")


def find(word: str) -> Page | None:
    """Return the page of a code or name, as copied from a message; None if the word is neither."""
    names = {code.lower(): name for name, code in CODES.items()} | {name: name for name in CODES}
    matches = {
        names.get(part.strip("-")) for part in re.findall(r"[\w-]+", word.lower().replace("_", "-"))
    }
    (name,) = matches if len(matches) == 1 else (None,)
    return page(name) if name else None


def page(name: str) -> Page:
    """Return the page of a finding; raise KeyError if there is no finding with this name."""
    if name not in CODES:
        raise KeyError(name)
    return parse((TEXTS / f"{name}.md").read_text(encoding="utf-8"), name)


# The page: meaning, consequences, fix, and false alarms; text in, page out


SECTIONS = ("What", "Why", "What to do", "When it is wrong", "References")
COLUMNS = 100
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_ITEM = re.compile(r"(?:-|\d+\.) +")


class PageError(ValueError):
    """A text that does not have the form of a page."""


@dataclass(frozen=True)
class Page:
    """The page of one finding; the sections are Markdown without headings."""

    code: str  # code of the finding, ``NET001``
    name: str  # name of the finding, ``port-in-use``
    what: str  # the state that the name describes
    why: str  # consequences and symptoms
    fix: str  # what to do, the likeliest first
    wrong: str  # when the finding is a false alarm or only a consequence, and how to find out
    references: tuple[str, ...]  # sources of the facts

    def sections(self) -> tuple[tuple[str, str], ...]:
        """Return titles and texts of the sections, in order."""
        listed = "\n".join(f"- {reference}" for reference in self.references)
        return tuple(
            zip(SECTIONS, (self.what, self.why, self.fix, self.wrong, listed), strict=True)
        )

    def markdown(self) -> str:
        """Return the page as Markdown, without its title."""
        return "\n\n".join(f"**{title}**\n\n{text}" for title, text in self.sections())

    def render(self) -> str:
        """Return the page as plain text for a terminal; lines to paste stay whole."""
        parts = [f"{self.code} {self.name}"]
        for title, text in self.sections():
            parts += ["", title, *_rendered(text)]
        return "\n".join(parts)


def parse(text: str, name: str) -> Page:
    """Return the page in a text."""
    if name not in CODES:
        raise PageError(f"{name}: no finding has this name")
    title, *rest = _split(text, name)
    if title != f"# {name}":
        raise PageError(f"{name}: the first line is '# {name}', not {title!r}")
    titles = tuple(part.partition("\n")[0].strip() for part in rest)
    if titles != SECTIONS:
        raise PageError(
            f"{name}: the sections are {', '.join(SECTIONS)}, not {', '.join(titles) or 'none'}"
        )
    texts = [part.partition("\n")[2].strip("\n") for part in rest]
    for section, body in zip(SECTIONS, texts, strict=True):
        if not body.strip():
            raise PageError(f"{name}: the section {section} is empty")
    what, why, fix, wrong, listed = texts
    return Page(CODES[name], name, what, why, fix, wrong, tuple(_listed(listed, name)))


def _split(text: str, name: str) -> list[str]:
    """Return the title and the sections without their ``## ``; in fenced blocks # is a comment."""
    parts, fenced = [""], False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            parts.append(line[3:])
        elif re.match(r"#+ ", line) and not fenced and parts != [""]:
            raise PageError(f"{name}: a heading that is not a section: {line!r}")
        else:
            parts[-1] += ("\n" if parts[-1] else "") + line.rstrip()
    if fenced:
        raise PageError(f"{name}: a fenced block has no end")
    return [parts[0].strip(), *parts[1:]]


def _listed(text: str, name: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith("- ") or not line[2:].strip():
            raise PageError(f"{name}: a reference is a line that starts with '- ', not {line!r}")
        yield line[2:].strip()


def _rendered(text: str) -> Iterator[str]:
    """Yield a section's lines: paragraphs and items filled, lines to paste as they are."""
    flow: list[str] = []
    fenced = False
    for line in text.splitlines():
        fence = line.startswith("```")
        as_it_is = fenced or fence or line.startswith(("    ", "|")) or not line.strip()
        if flow and (as_it_is or _ITEM.match(line)):
            yield from _filled(flow)
            flow = []
        if fence:
            fenced = not fenced
        elif fenced:
            yield f"      {line}".rstrip()
        elif as_it_is:
            yield f"  {line}".rstrip()
        else:
            flow.append(line.strip())
    yield from _filled(flow)


def _filled(flow: list[str]) -> list[str]:
    text = _LINK.sub(r"\1 (\2)", " ".join(flow))
    item = _ITEM.match(text)
    rest = "  " + " " * (item.end() if item else 0)
    return wrapped(text, COLUMNS, first="  ", rest=rest)
