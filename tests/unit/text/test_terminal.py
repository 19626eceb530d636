"""What a terminal is shown: lines wrapped at words, severities in colour; what a file gets is left as it is."""

import os

import pytest

from paceline.text import terminal

NOTICE = (
    "paceline: notice: rank 1 has been waiting for rank 0 for 120 s (hang?): rank 0 is in urlopen, data.py:40\n"
    "  torch ends this wait after 30 min, `--hang-timeout 60` sooner"
)
COMMAND = "  fix: paceline run --nproc-per-node 2 --run-dir paceline-runs/20261122-070025-digits-5930 examples/digits.py"


@pytest.fixture(autouse=True)
def no_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")


def test_what_goes_to_a_file_is_left_as_it_is():
    assert terminal.fitted(NOTICE, 0) == NOTICE


def test_a_terminal_shows_lines_wrapped_at_words_and_indented():
    shown = terminal.fitted(NOTICE, 80).split("\n")
    assert max(map(len, shown)) <= 80
    assert [line[:2] for line in shown] == ["pa", "  ", "  "]
    assert " ".join(" ".join(shown).split()) == " ".join(NOTICE.split())


@pytest.mark.parametrize(
    "line", [COMMAND, "resume: " + COMMAND[7:], "auto-resume: (trap exit INT; " + "x " * 60 + ")"]
)
def test_a_command_stays_on_one_line(line):
    assert terminal.fitted(line, 80) == line


def test_a_path_is_never_cut():
    path = "/" + "scratch/" * 12
    assert path in terminal.fitted(f"paceline: run folder {path}", 80).split()


def test_a_place_that_fits_without_its_indentation_is_not_broken():
    place = "/home/me/" + "x" * 66 + ".py:12"
    assert place in terminal.fitted(f"  {place} in main: value = compute()", 80).split("\n")
    assert len(place) > 80 - 2 - 2


def test_severities_and_labels_have_colours(monkeypatch):
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    shown = terminal.fitted("error RUN001 user-exception: an error here\n  fix: look", 80)
    assert (
        shown
        == "\x1b[1;31merror\x1b[0m RUN001 user-exception: an error here\n  \x1b[1mfix\x1b[0m: look"
    )
    assert terminal.fitted("error RUN001", 0) == "error RUN001"
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.fitted("error RUN001", 80) == "error RUN001"


def test_only_a_terminal_has_columns(tmp_path):
    master, slave = os.openpty()
    try:
        os.set_blocking(master, False)
        import fcntl
        import struct
        import termios

        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 72, 0, 0))
        assert terminal.columns_of(slave) == 72
    finally:
        os.close(master)
        os.close(slave)
    with (tmp_path / "file").open("w") as file:
        assert terminal.columns_of(file) == 0
    assert terminal.columns_of(file) == 0, "it is closed now"
