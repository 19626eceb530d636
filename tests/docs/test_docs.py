"""The pages: links resolve, generated pages are up to date, Python compiles, and what is marked runs.

A block runs if the line directly above its fence is ``<!-- run -->``, or ``<!-- run, exit 1 -->`` where that exit
status is right. The blocks of a page run in order, in one temporary folder. A Python block whose first line is
``# file: NAME`` is written to NAME there, marked or not; of a console block the lines after ``$`` are run.
A block under ``<!-- run, slow -->`` runs in ``make test-all``, in order with the other marked blocks of its page.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import BLOCK_S, MARK, MARK_OR_SLOW, SLOW, blocks, run
from repository_scripts import script

ROOT = Path(__file__).parents[2]
SKIPPED = {"runs", "paceline-runs", "dist"}  # hidden folders too


def find_pages():
    folders = [
        path
        for path in ROOT.iterdir()
        if path.is_dir() and path.name[0] != "." and path.name not in SKIPPED
    ]
    return sorted(
        [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]
    )


PAGES = {page.relative_to(ROOT).as_posix(): page for page in find_pages()}


def prose(text):
    """The text without its code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))


def anchors(text):
    """The anchors of a page: those of headings, made as GitHub makes them, and those that it sets itself."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    titles = re.findall(r"^#+ +(.+?)\s*$", text, flags=re.M)
    of_titles = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return {*of_titles, *re.findall(r'<a id="([^"]+)"', text)}


def test_the_places_where_things_are_decided_exist():
    """The table of how-it-works: each row's module and functions are where it says."""
    source = ROOT / "src" / "paceline"
    page = (ROOT / "docs" / "explain" / "how-it-works.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[2:4] for line in page.splitlines() if line.startswith("| ") and "?" in line
    ]
    assert len(rows) >= 5
    for package, modules in rows:
        folder = source / package.strip(" `")
        path, text = folder, ""
        for word in re.findall(r"`([^`]+)`", modules):
            if word.endswith(".py"):
                place = source / word if "/" in word else folder / word
                if not place.exists():  # beside the module before it in the row
                    place = path.with_name(word)
                path, text = place, place.read_text(encoding="utf-8")
            else:
                assert f"def {word}(" in text, (word, path)


def test_there_are_pages():
    assert {"README.md", "docs/start.md", "docs/reference/options.md"} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_link_resolves(name):
    page = PAGES[name]
    broken = []
    for target in re.findall(r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        if not found.exists() or (anchor and anchor not in anchors(found.read_text())):
            broken.append(target)
    assert broken == []


def test_generated_pages_are_up_to_date():
    with script("reference") as reference:
        assert reference.stale() == [], "run scripts/reference.py"


@pytest.mark.parametrize("name", PAGES)
def test_python_compiles(name):
    for block in blocks(PAGES[name].read_text()):
        if block.language == "python":
            compile(block.text, f"{name}:{block.line}", "exec", dont_inherit=True)


def pages_with(mark):
    """The names of the pages in which a mark occurs."""
    return [name for name, page in PAGES.items() if mark.search(page.read_text())]


def own_lines(text):
    """What paceline prints of itself: the plan without the run folder, of another line what it is about."""
    plan = re.findall(r"^paceline: (\d+ nodes? x .+) · ", text, re.M)
    return {*plan, *re.findall(r"^paceline: (done|result|step|run) ?", text, re.M)}


def run_page(name, folder, mark, timeout_s=BLOCK_S):
    """Run the blocks of a page that have the mark, in order; each must end with its exit status."""
    for block in blocks(PAGES[name].read_text(), mark):
        if block.file:
            (folder / block.file).write_text(block.text)
        if block.status is not None:
            status, output = run(block, folder, timeout_s=timeout_s)
            assert status == block.status, f"{name}:{block.line} ended with {status}:\n{output}"
            written = own_lines(block.text)
            assert not written or written == own_lines(output), f"{name}:{block.line} is stale"


@pytest.mark.ci
@pytest.mark.timeout(180)  # a page may have several blocks
@pytest.mark.parametrize("name", pages_with(MARK))
def test_marked_blocks_run(name, tmp_path):
    run_page(name, tmp_path, MARK)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", pages_with(SLOW))
def test_slow_blocks_run(name, tmp_path):
    run_page(name, tmp_path, MARK_OR_SLOW, timeout_s=240)
