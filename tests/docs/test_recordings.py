"""Recorded sessions: pictures that fetch nothing, name nobody, and have the same text beside them."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from repository_scripts import script

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "raw" / "recordings"
PICTURES = sorted(FOLDER.glob("*.svg"))
MOST_BYTES = 40_000
COLUMNS = 80
SPACE = "{http://www.w3.org/2000/svg}"
RED = "\x1b[1;31m"


@pytest.fixture(scope="module")
def recordings():
    with script("recordings") as module:
        yield module


def words_of(svg):
    """The letters that a picture shows, without blanks: it has them as one element for each piece."""
    shown = [text for element in svg.iter(f"{SPACE}text") for text in element.itertext()]
    return re.sub(r"\s", "", "".join(shown))


def test_every_session_has_its_picture(recordings):
    names = {picture.stem for picture in PICTURES}
    assert names == {*recordings.SESSIONS, "block"}
    assert (FOLDER / "report.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_small_and_fetches_nothing(picture):
    text = picture.read_text(encoding="utf-8")
    svg = ElementTree.fromstring(text)
    assert len(text.encode()) <= MOST_BYTES
    assert svg.find(f"{SPACE}title").text
    assert "url(http" not in text
    assert "@font-face" not in text
    assert re.findall(r'(?:href|src)="', text) == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_the_text_beside_a_picture_says_the_same(picture):
    alternative = picture.with_suffix(".txt").read_text(encoding="utf-8")
    shown = words_of(ElementTree.fromstring(picture.read_text(encoding="utf-8")))
    assert shown == re.sub(r"\s", "", alternative)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_names_no_machine(picture):
    text = picture.with_suffix(".txt").read_text(encoding="utf-8")
    assert re.findall(r"/tmp/\S+|/root\b\S*|\.venv\S*", text) == []
    assert set(re.findall(r"pid (\d+)", text)) <= {"4711"}
    assert set(re.findall(r"on (\S+) \(pid", text)) <= {"node-a"}


def test_names_of_the_machine_become_neutral(recordings):
    text = (
        "rank 1 on big-host (pid 812), /tmp/x/train.py, 127.0.0.1:3999,"
        " paceline-runs/20260102-030405-train-ab12, big-hostess"
    )
    assert recordings.neutral(text, "/tmp/x", host="big-host") == (
        "rank 1 on node-a (pid 4711), /home/me/project/train.py, 127.0.0.1:29500,"
        " paceline-runs/20261201-093000-train-3f2a, big-hostess"
    )


def test_a_picture_has_colours_and_breaks_lines_as_a_terminal(recordings):
    svg = recordings.picture(f"{RED}cause\x1b[0m: {'x' * 100}", name="a", title="a <title>")
    root = ElementTree.fromstring(svg)
    pieces = ["".join(text.itertext()) for text in root.iter(f"{SPACE}text")]
    assert max(map(len, pieces)) <= COLUMNS
    assert words_of(root) == "cause:" + "x" * 100
    assert root.find(f"{SPACE}title").text == "a <title>"
    assert "#ff7b72" in svg


def test_the_block_is_the_end_of_a_run(recordings):
    text = "step 1\n\x1b[2m── paceline ──\x1b[0m\ncause: x\n"
    assert recordings.plain(recordings.block_of(text)) == "── paceline ──\ncause: x\n"
