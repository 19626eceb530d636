"""What ranks print: which streams are shown and how, and the copying itself, through real pipes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import struct
import termios
import threading
import time

import pytest

from paceline.launch.plan.parsing import parse
from paceline.launch.run import log_file, pump
from paceline.launch.run.console import Console, StreamPlan, fill_prefix, plan_streams
from typed import words

# ----------------------------------------------------------------------------------------------- decisions


def planned(rank, local_rank, **typed):
    return plan_streams(
        parse("train.py", (), typed=typed, inherited={}),
        rank=rank,
        local_rank=local_rank,
        paths=("rank.out", "rank.err"),
        prefix="[p]:",
        filtered=("filtered.out", "filtered.err"),
    )


def in_words(plan):
    return ("prefixed" if plan.prefix else "plain") if plan.shown else "hidden"


@pytest.mark.parametrize(
    ("typed", "rank", "local_rank", "out", "err"),
    [
        ("", 0, 0, "plain", "plain"),
        ("", 1, 1, "hidden", "hidden"),
        ("", 4, 0, "hidden", "hidden"),  # local rank 0 of the second node
        ("tee=3", 0, 0, "prefixed", "prefixed"),
        ("tee=3", 1, 1, "prefixed", "prefixed"),
        ("tee=1", 0, 0, "prefixed", "plain"),
        ("tee=1", 1, 1, "prefixed", "hidden"),
        ("tee=2", 1, 1, "hidden", "prefixed"),
        ("tee=1:3", 0, 0, "plain", "plain"),
        ("tee=1:3", 1, 1, "prefixed", "prefixed"),
        ("redirects=3", 0, 0, "hidden", "hidden"),
        ("redirects=1", 0, 0, "hidden", "plain"),
        ("redirects=0:2", 0, 0, "plain", "hidden"),
        ("redirects=1:3", 0, 0, "plain", "plain"),
        ("redirects=3 tee=3", 1, 1, "prefixed", "prefixed"),
        ("redirects=3 tee=2", 0, 0, "hidden", "prefixed"),
        ("local_ranks_filter=1", 0, 0, "hidden", "hidden"),
        ("local_ranks_filter=1", 1, 1, "plain", "plain"),
        ("local_ranks_filter=0", 4, 0, "plain", "plain"),
        ("local_ranks_filter=0,1", 0, 0, "prefixed", "prefixed"),
        ("local_ranks_filter=0,1", 2, 2, "hidden", "hidden"),
        ("local_ranks_filter=0 tee=3", 1, 1, "hidden", "hidden"),
        ("local_ranks_filter=0 tee=3", 0, 0, "prefixed", "prefixed"),
        ("local_ranks_filter=1 redirects=1", 1, 1, "hidden", "plain"),
    ],
)
def test_what_the_console_shows(typed, rank, local_rank, out, err):
    assert tuple(map(in_words, planned(rank, local_rank, **words(typed)))) == (out, err)


def test_every_stream_has_its_files_also_when_it_is_hidden():
    out, err = planned(3, 3)
    assert (out.path, out.filtered, err.path, err.filtered) == (
        "rank.out",
        "filtered.out",
        "rank.err",
        "filtered.err",
    )


def test_filters_belong_to_their_stream_and_to_teed_ones_only():
    typed = {
        "tee": "1:3",
        "duplicate_stdout_filters": "loss",
        "duplicate_stderr_filters": "warn,oom",
    }
    out, err = planned(1, 1, **typed)
    assert (out.filters, err.filters) == (("loss",), ("warn", "oom"))
    assert [plan.filters for plan in planned(0, 0, **typed)] == [(), ()]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("[${role_name}${local_rank}]:", "[default1]:"),
        ("${rank}/${rank} ", "5/5 "),
        ("${hostname}:${rank}: ", f"{socket.gethostname()}:5: "),
        ("$unknown ${rank} 5$ ", "$unknown 5 5$ "),
        ("", ""),
    ],
)
def test_prefixes_are_filled_in_as_torchrun_does(template, text):
    assert fill_prefix(template, role="default", rank=5, local_rank=1) == text


# ------------------------------------------------------------------------------------------------- copying


@pytest.fixture
def pipe():
    """A pipe; what has been read of it is all that came until its writers closed it."""
    source, sink = os.pipe()
    yield source, sink
    for handle in (source, sink):
        with contextlib.suppress(OSError):
            os.close(handle)


def take_all(handle):
    """Read what is in a pipe now."""
    os.set_blocking(handle, False)
    content = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(handle, 1 << 16):
            content += data
    return content


class Stage:
    """A console whose output lands in a pipe, and a rank's streams on it."""

    def __init__(self, folder, source, sink):
        self.folder = folder
        self.source = source
        self.console = Console(out=sink, err=sink)

    def open(self, *, name="rank.out", shown=True, prefix="", filters=()):
        plan = StreamPlan(
            str(self.folder / "logs" / name), shown, prefix, filters, str(self.folder / "filtered")
        )
        return self.console.open((plan, plan))

    def close(self, *handles):
        for handle in handles:
            os.close(handle)
        self.console.drain()

    def shown(self):
        return take_all(self.source)

    def path(self, name="rank.out"):
        return str(self.folder / "logs" / name)

    def kept(self, name="rank.out"):
        return (self.folder / "logs" / name).read_bytes()


@pytest.fixture
def stage(tmp_path, pipe):
    return Stage(tmp_path, *pipe)


def test_a_rank_that_is_shown_goes_to_its_file_and_to_the_console(stage):
    out, err = stage.open()
    os.write(out, b"one\n")
    os.write(err, b"two\n")
    os.write(out, b"no line feed\r50 %")
    stage.close(out, err)
    assert stage.kept() == stage.shown() == b"one\ntwo\nno line feed\r50 %"


def test_a_rank_that_is_hidden_goes_to_its_file_only(stage):
    out, err = stage.open(shown=False)
    os.write(out, b"one\n")
    os.write(err, b"two\n")
    stage.close(out, err)
    assert stage.kept() == b"one\ntwo\n"
    assert stage.shown() == b""


def test_what_a_hidden_rank_printed_last_can_be_quoted_at_once(stage):
    handles = stage.open(shown=False)
    os.write(handles[0], b"the last words\n")
    assert stage.console.tail(stage.path()) == "the last words\n"
    stage.close(*handles)
    assert stage.console.tail(stage.path()) == "the last words\n"
    assert stage.console.tail("another") == ""


@pytest.mark.parametrize("shown", [True, False], ids=["shown", "hidden"])
def test_a_log_folder_that_is_deleted_stops_nothing_and_is_told_once(stage, shown):
    out, err = stage.open(shown=shown)
    other = stage.open(name="rank-1.out", shown=False)
    os.write(out, b"before\n")
    time.sleep(log_file._NAME_CHECK_S + 0.1)
    shutil.rmtree(stage.folder / "logs")
    for number in range(3):
        for handle in (out, *other):
            os.write(handle, b"line %d\n" % number)
        time.sleep(0.05)
    assert stage.console.tail(stage.path()) == "before\nline 0\nline 1\nline 2\n"
    stage.close(out, err, *other)
    told = stage.shown().decode()
    assert told.count("notice:") == 1
    assert f"the log folder {stage.folder / 'logs'} was deleted while the run writes to it" in told
    assert not (stage.folder / "logs").exists()  # scripts make such a folder again themselves


def test_two_starts_of_a_rank_share_a_file_without_loss(stage):
    for text in (b"first\n", b"second\n"):
        out, err = stage.open(shown=False)
        os.write(out, text)
        stage.close(out, err)
    assert stage.kept() == b"first\nsecond\n"


def test_a_prefix_stands_before_every_line_and_in_the_file_before_none(stage):
    out, err = stage.open(prefix="[default0]:")
    os.write(out, b"one\ntwo")
    os.write(out, b" and more\n\nlast")
    stage.close(out, err)
    assert (
        stage.shown() == b"[default0]:one\n[default0]:two and more\n[default0]:\n[default0]:last\n"
    )
    assert stage.kept() == b"one\ntwo and more\n\nlast"


def test_lines_of_two_ranks_are_not_mixed(stage):
    first, second = stage.open(name="0", prefix="0:"), stage.open(name="1", prefix="1:")
    for number in range(50):
        for out, _ in (first, second):
            os.write(out, f"line {number} ".encode())
        for out, _ in (first, second):
            os.write(out, b"end\n")
    stage.close(*first, *second)
    lines = stage.shown().decode().splitlines()
    for rank in (0, 1):
        expected = [f"{rank}:line {number} end" for number in range(50)]
        assert [line for line in lines if line.startswith(f"{rank}:")] == expected
    assert len(lines) == 100


def test_lines_that_match_a_filter_are_copied_once_more(stage):
    out, err = stage.open(prefix="0:", filters=("loss", "größe"))
    os.write(out, "step 1 loss 3\nnothing\nno größe\nloss".encode())
    stage.close(out, err)
    assert (stage.folder / "filtered").read_text() == "0:step 1 loss 3\n0:no größe\n0:loss\n"


def test_much_output_comes_through_whole(stage):
    out, err = stage.open()
    content = b"".join(b"%08d\n" % number for number in range(200_000))
    received = []

    def read():
        while len(b"".join(received)) < len(content):
            received.append(os.read(stage.source, 1 << 20))

    reader = threading.Thread(target=read)
    reader.start()
    view = memoryview(content)
    while view:
        view = view[os.write(out, view) :]
    stage.close(out, err)
    reader.join(20)
    assert b"".join(received) == stage.kept() == content


def test_draining_takes_what_is_there_although_somebody_holds_the_other_end(stage):
    out, err = stage.open()
    os.write(out, b"left behind")
    stage.console.drain(timeout_s=0.05)
    assert stage.kept() == stage.shown() == b"left behind"
    for handle in (out, err):
        os.close(handle)


def test_draining_twice_is_no_trouble(stage):
    out, err = stage.open()
    stage.close(out, err)
    stage.console.drain()


def test_streams_can_be_opened_again_after_a_drain(stage):
    for number in range(3):
        out, err = stage.open()
        os.write(out, b"%d\n" % number)
        stage.close(out, err)
    assert stage.kept() == stage.shown() == b"0\n1\n2\n"


def test_a_console_that_was_closed_does_not_stop_the_run(stage):
    os.close(stage.source)  # paceline run ... | head
    out, err = stage.open(prefix="0:")
    os.write(out, b"one\ntwo\n")
    stage.close(out, err)
    assert stage.kept() == b"one\ntwo\n"


def test_a_console_that_somebody_made_non_blocking_loses_nothing(stage):
    """ssh and some terminals' programs do that to the terminal that they share with the launcher."""
    os.set_blocking(stage.console.out, False)
    out, err = stage.open()
    content = b"x" * 300_000  # more than a pipe holds
    received = []

    def read():
        while len(b"".join(received)) < len(content):
            received.append(os.read(stage.source, 1 << 16))

    reader = threading.Thread(target=read)
    reader.start()
    view = memoryview(content)
    while view:
        view = view[os.write(out, view) :]
    stage.close(out, err)
    reader.join(20)
    assert b"".join(received) == content


def test_two_consoles_have_two_streams(tmp_path, pipe):
    other_source, other_sink = os.pipe()
    try:
        console = Console(out=pipe[1], err=other_sink)
        plans = [StreamPlan(str(tmp_path / name), shown=True) for name in ("out", "err")]
        out, err = console.open((plans[0], plans[1]))
        os.write(out, b"to stdout")
        os.write(err, b"to stderr")
        os.close(out)
        os.close(err)
        console.drain()
        assert (take_all(pipe[0]), take_all(other_source)) == (b"to stdout", b"to stderr")
        assert ((tmp_path / "out").read_bytes(), (tmp_path / "err").read_bytes()) == (
            b"to stdout",
            b"to stderr",
        )
    finally:
        os.close(other_source)
        os.close(other_sink)


def test_a_log_file_that_cannot_be_opened_stops_nothing(stage):
    (stage.folder / "logs").write_text("a file is in the way")
    out, err = stage.open()
    os.write(out, b"one\n")
    stage.close(out, err)
    told = stage.shown().decode()
    assert f"the logs in {stage.folder / 'logs'} cannot be written" in told
    assert told.endswith("one\n")


class FullDisk:
    """Stands for ``os`` in a log file: writing takes a part and then fails, until there is space again."""

    def __init__(self, room):
        self.room = room

    def __getattr__(self, name):
        return getattr(os, name)

    def write(self, handle, data):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(handle, data[: self.room])
        self.room -= written
        return written


def test_a_full_disk_drops_output_and_the_log_says_so_when_there_is_space_again(
    tmp_path, monkeypatch
):
    disk, losses = FullDisk(room=4), []
    monkeypatch.setattr(log_file, "os", disk)
    file = log_file.LogFile(
        str(tmp_path / "rank.out"), lambda path, reason: losses.append((path, reason))
    )
    file.open()
    file.write(b"one\ntwo\n")
    file.write(b"three\n")
    disk.room = 10_000
    file.write(b"four\n")
    assert set(losses) == {(str(tmp_path / "rank.out"), "No space left on device")}
    assert file.tail == "one\ntwo\nthree\nfour\n"
    file.close()
    note = "[paceline: 10 bytes of output could not be written here]"
    assert (tmp_path / "rank.out").read_text() == f"one\n\n{note}\nfour\n"


def test_streams_that_somebody_still_holds_can_be_handed_over(stage):
    kept, gone = stage.open(prefix="0:"), stage.open(name="rank-1.out", shown=False)
    os.write(kept[0], b"early\nhalf")
    stage.close(*gone)
    (copy,) = stage.console.release()
    values = pump.describe(copy)
    again = pump.restore(json.loads(json.dumps(values)), os.dup(copy.source), os.dup(copy.console))
    copy.finish()
    thread = threading.Thread(target=pump.Pump("another").serve_until_end, args=([again],))
    thread.start()
    os.write(kept[0], b" a line\n")
    for handle in kept:
        os.close(handle)
    thread.join(10)
    assert not thread.is_alive()
    assert stage.kept() == b"early\nhalf a line\n"
    os.close(again.console)


def test_words_of_our_own_are_whole_lines(stage):
    stage.console.say("ranks were started again")
    stage.console.write(["one", "two"])
    assert stage.shown() == b"paceline: ranks were started again\none\ntwo\n"


# ---------------------------------------------------------------------------------------------- a terminal


def set_size(handle, rows, columns):
    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def size_of(handle):
    return struct.unpack("HHHH", fcntl.ioctl(handle, termios.TIOCGWINSZ, b"\0" * 8))[:2]


@pytest.fixture
def terminal():
    """The two ends of a terminal that the console writes to."""
    master, slave = os.openpty()
    set_size(slave, 30, 100)
    yield master, slave
    os.close(master)
    os.close(slave)


def test_on_a_terminal_a_rank_has_a_terminal_of_the_same_size(tmp_path, terminal):
    master, slave = terminal
    console = Console(out=slave, err=slave)
    plan = StreamPlan(str(tmp_path / "rank.out"), shown=True)
    out, err = console.open((plan, plan))
    assert os.isatty(out)
    assert os.isatty(err)
    assert size_of(out) == (30, 100)
    set_size(slave, 20, 60)
    console.resize()
    assert size_of(out) == (20, 60)
    os.write(out, b"50 %\r100 %\n")
    os.close(out)
    os.close(err)
    console.drain()
    assert (tmp_path / "rank.out").read_bytes() == b"50 %\r100 %\n"
    assert (
        take_all(master) == b"50 %\r100 %\r\n"
    )  # the one carriage return that the real terminal adds


def test_a_message_is_a_line_of_its_own_beside_a_progress_bar(tmp_path):
    """A bar leaves its line open, and the message was written behind it."""
    with (tmp_path / "screen").open("wb") as screen:
        console = Console(out=screen.fileno(), err=screen.fileno())
        pump.write(screen.fileno(), b"\repoch 1:  40%|####      |")
        console.say("notice: one")
        console.say("notice: two")
        pump.write(screen.fileno(), b"\repoch 1: 100%|##########|\n")
        console.say("done")
    assert (tmp_path / "screen").read_bytes().decode().split("\n") == [
        "\repoch 1:  40%|####      |",
        "paceline: notice: one",
        "paceline: notice: two",
        "\repoch 1: 100%|##########|",
        "paceline: done",
        "",
    ]
