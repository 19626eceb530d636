"""Builds the documentation site, .site/html, and fails where a link or an anchor leads nowhere.

    python scripts/build_site.py

zensical reads .site/docs, which this script makes from docs/: with a page for each finding, and
with CONTRIBUTING.md, STYLE.md and CHANGELOG.md. In the repository these and the texts of findings
are elsewhere, so links to them change on the way. A link to another file of the repository, such as
a test, becomes its path: the site has no copy of it.

Afterwards the search forgets what is for developers, and of equal hits shows guides before the
reference; and the page for addresses that lead nowhere gets relative links, so that it works in a
site that is not at the root of its host.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reference import finding_page

from paceline.codes import CODES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
STAGED = ROOT / ".site" / "docs"
BUILT = ROOT / ".site" / "html"
PROJECT_PAGES = {
    "CONTRIBUTING.md": "project/contributing.md",
    "STYLE.md": "project/style.md",
    "CHANGELOG.md": "project/changelog.md",
}
MOVED = {
    **PROJECT_PAGES,
    "README.md": "index.md",
    "docs/design": "design/index.md",
    "docs/reference/api": "reference/index.md",
    **{
        f"src/paceline/diagnose/catalogue/texts/{name}.md": f"reference/findings/{name}.md"
        for name in CODES
    },
}
FINDINGS = "docs/reference/findings.md"
NOT_SEARCHED = ("log.html", "design/", "project/")
# The search sorts by where the words stand; what is equal keeps the order of the index.
SEARCH_ORDER = ("index.html", "start.html", "guides/", "explain/", "reference/findings", "")
# Known folders tell where the site begins, wherever the missing page would have been.
BASE = """<script>document.write('<base href="' + location.pathname.replace(
/((guides|explain|reference|design|project)\\/.*|[^\\/]*)$/, "") + '">')</script>"""
STRICT = "Aborted because --strict"  # the end of a traceback of zensical's
_FENCED = re.compile(r"^(```+).*?^\1", re.M | re.S)
# On GitHub a list may follow a paragraph at once, in Python-Markdown after an empty line only.
_LINE_BEFORE_LIST = re.compile(r"^(?![-\s#<|>]|\d+\. )(.+)\n(?=(?:-|1\.) )", re.M)
# In code within a table a bar needs a backslash on GitHub, and must not have one in Python-Markdown.
_TABLE_ROW = re.compile(r"^\|.*\\\|.*", re.M)
_CODE_OR_LINK = re.compile(
    r"(?P<code>`+)[^`]+(?P=code)|\[(?P<text>[^\[\]]+)\]\((?P<target>[^)\s]+)\)"
)


def staged_pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each page of the site."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        path = page.relative_to(ROOT).as_posix()
        yield path.removeprefix("docs/"), site_text(page.read_text(encoding="utf-8"), path)
    for path, place in PROJECT_PAGES.items():
        yield place, site_text((ROOT / path).read_text(encoding="utf-8"), path)
    for name in CODES:
        yield f"reference/findings/{name}.md", finding_page(name)
    yield "design/index.md", decisions_page()


def decisions_page() -> str:
    """Return the page that lists the design decisions; in the repository the folder does."""
    pages = sorted((ROOT / "docs" / "design").glob("[0-9]*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in pages]
    rows = [
        f"- [{re.sub(r'^# 0*', '', title)}]({page.name})"
        for page, title in zip(pages, titles, strict=True)
    ]
    intro = "Each page has the context of a decision, the decision, its consequence and what would change it."
    return "\n\n".join(("# Design decisions", intro, "\n".join(rows))) + "\n"


def site_text(text: str, path: str) -> str:
    """Return a page with its links and lists as the site needs them.

    Args:
        text: The page, in Markdown.
        path: Where it is in the repository, ``docs/guides/run.md``.
    """
    parts, place = [], 0
    for fenced in _FENCED.finditer(text):
        parts += [_site_prose(text[place : fenced.start()], path), fenced[0]]
        place = fenced.end()
    return "".join([*parts, _site_prose(text[place:], path)])


def _site_prose(prose: str, path: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or target.startswith("#") or re.match(r"[a-z]+:", target):
            return match[0]
        return _site_link(match["text"], target, path)

    prose = _LINE_BEFORE_LIST.sub(r"\1\n\n", prose)
    prose = _TABLE_ROW.sub(lambda row: _with_bars(row[0]), prose)
    return _CODE_OR_LINK.sub(replaced, prose)


def _with_bars(row: str) -> str:
    return re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), row)


def _site_link(text: str, target: str, path: str) -> str:
    relative, _, anchor = target.partition("#")
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))
    if linked == FINDINGS and anchor in CODES:
        return f"[{text}]({_from(path, f'reference/findings/{anchor}.md')})"
    hashed = f"#{anchor}" if anchor else ""
    if linked in MOVED:
        return f"[{text}]({_from(path, MOVED[linked])}{hashed})"
    if linked.startswith("docs/"):
        return f"[{text}]({_from(path, linked.removeprefix('docs/'))}{hashed})"
    return f"{text} (`{linked}`)"


def _from(path: str, target: str) -> str:
    """Return the relative link from a page of the repository to a page of the site."""
    place = PROJECT_PAGES.get(path, path.removeprefix("docs/"))
    return posixpath.relpath(target, posixpath.dirname(place) or ".")


def stage() -> None:
    """Make ``.site/docs``: the pages, and the files that they show."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(ROOT / "docs", STAGED, ignore=shutil.ignore_patterns("*.md"))
    for path, text in staged_pages():
        place = STAGED / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def order_search() -> None:
    """Leave out what is for developers, and put pages before their sections, guides first."""
    place = BUILT / "search.json"
    index = json.loads(place.read_text(encoding="utf-8"))
    searched = [item for item in index["items"] if not item["location"].startswith(NOT_SEARCHED)]
    for item in searched:
        _name_finding(item)
    index["items"] = sorted(searched, key=_search_order)
    place.write_text(json.dumps(index), encoding="utf-8")


def _name_finding(item: dict[str, Any]) -> None:
    """Say that a hit is a finding; so a guide of the same word, which stands first there, wins."""
    if item["location"].startswith("reference/findings/"):
        item["path"] = ["Reference", "Findings", *item["path"]]
        if item["level"] == 1:
            item["title"] = f"Finding {item['title']}"


def _search_order(item: dict[str, Any]) -> tuple[int, int]:
    group = next(i for i, start in enumerate(SEARCH_ORDER) if item["location"].startswith(start))
    return group, item["level"]


def relative_missing_page() -> None:
    """Make the links of 404.html relative."""
    place = BUILT / "404.html"
    text = re.sub(r'((?:href|src)="|"(?:base|search)":")/', r"\1./", place.read_text("utf-8"))
    place.write_text(text.replace("<head>", f"<head>{BASE}", 1), encoding="utf-8")


def llms_text() -> str:
    """Return the text for language models (llmstxt.org): what paceline is, and all pages by section."""
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    skill = (ROOT / "src/paceline/cli/skill.md").read_text(encoding="utf-8")
    pages = dict(staged_pages())
    blocks = [
        f"# {config['site_name']}",
        f"> {config['site_description']}",
        skill.partition("\n\n")[2],
    ]
    for section in config["nav"]:
        for title, entries in section.items():
            blocks.append(f"## {title}\n\n" + "\n".join(_llms_lines(entries, pages)))
    return "\n\n".join(blocks) + "\n"


def _llms_lines(entries: list[Any], pages: dict[str, str]) -> Iterator[str]:
    """Yield a line for each page below an entry of the navigation."""
    for entry in entries:
        if not isinstance(entry, str):
            for below in entry.values():
                yield from _llms_lines(below if isinstance(below, list) else [below], pages)
            continue
        title = re.search(r"^# (.+)$", pages[entry], re.MULTILINE)
        name = title[1] if title else entry
        yield f"- [{name}]({entry.removesuffix('.md')}.html)"


def main() -> int:
    """Build the site and return zensical's exit status."""
    stage()
    shutil.rmtree(BUILT, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    ended = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    warnings = ended.stderr.partition("Traceback (most recent call last)")[0]
    is_strict = STRICT in ended.stderr
    print(warnings if is_strict else ended.stderr, end="", file=sys.stderr)
    place = os.path.relpath(BUILT)
    if ended.returncode == 0:
        order_search()
        relative_missing_page()
        (BUILT / "llms.txt").write_text(llms_text(), encoding="utf-8")
        print(f"site: {place}; to read it: python -m http.server -d {place}", file=sys.stderr)
    elif is_strict:
        print("site: warnings are errors; their lines are those of .site/docs", file=sys.stderr)
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
