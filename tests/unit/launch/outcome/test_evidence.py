"""Evidence about how ranks ended: their files, faulthandler's dumps, the kernel's counts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import commits
from paceline.launch.in_rank import rank_entry
from paceline.launch.outcome import evidence
from paceline.launch.outcome.rank_exit import Failure
from paceline.launch.outcome.resume import Checkpoint
from paceline.launch.plan.task import SCRIPT, RankTask
from paceline.rundir.files import RunDir

OURS = str(Path(evidence.__file__).parent / "worker.py")


# --------------------------------------------------------------------------------------------- exceptions


def test_what_the_worker_records_is_read_back(tmp_path):
    path = tmp_path / "error.json"
    task = RankTask(local_rank=0, kind=SCRIPT, target="train.py", error_file=str(path))
    try:
        json.loads("{")
    except ValueError as error:
        rank_entry.record(task, error)
    failure = evidence.read_failure(path)
    assert failure.type == "JSONDecodeError"
    assert failure.message.startswith("Expecting property name")
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert (failure.place.file, failure.place.code) == (__file__, 'json.loads("{")')
    assert [frame.user for frame in failure.frames] == [True, False, False, False][
        : len(failure.frames)
    ]
    assert failure.time_ns > 1_700_000_000 * 10**9


class Nameless(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")


class Mute(Exception, metaclass=Nameless):
    def __str__(self):
        raise SystemExit(0)


class Group(Exception):  # as that of Python 3.11 and its backport
    exceptions = (KeyError("a"), OSError("b\nc"))


def with_notes():
    error = ValueError("no")
    error.__notes__ = ["at sample 7"]
    return error


@pytest.mark.parametrize(
    ("error", "message", "notes", "parts"),
    [
        (Mute(), "<its str() raises an exception>", (), ()),
        (Group("many"), "many", (), ("KeyError: 'a'", "OSError: b")),
        (with_notes(), "no", ("at sample 7",), ()),
        (ValueError("\udcff\0"), "\udcff\0", (), ()),
    ],
    ids=["mute", "group", "notes", "not utf-8"],
)
def test_unusual_exceptions_are_recorded(tmp_path, error, message, notes, parts):
    path = tmp_path / "error.json"
    rank_entry.record(RankTask(0, SCRIPT, "train.py", error_file=str(path)), error)
    failure = evidence.read_failure(path)
    assert failure.type in ("Mute", "Group", "ValueError")
    assert (failure.message, failure.notes, failure.parts) == (message, notes, parts)


def test_a_syntax_error_is_placed_where_it_is(tmp_path):
    path = tmp_path / "error.json"
    try:
        compile("x = (\n", str(tmp_path / "broken.py"), "exec")
    except SyntaxError as error:
        rank_entry.record(RankTask(0, SCRIPT, "broken.py", error_file=str(path)), error)
    place = evidence.read_failure(path).place
    assert (place.file, place.line, place.code) == (str(tmp_path / "broken.py"), 1, "x = (")


def test_a_record_that_is_cut_off_leaves_no_half_file(tmp_path, monkeypatch):
    """A rank may be told to stop, or the disk may be full, in the middle of it."""
    path = tmp_path / "error.json"

    def disk_full(handle):
        raise OSError("No space left on device")

    monkeypatch.setattr("paceline.rundir.files.os.fsync", disk_full)
    rank_entry.record(RankTask(0, SCRIPT, "train.py", error_file=str(path)), ValueError("no"))
    assert list(tmp_path.iterdir()) == []


def test_what_torchs_record_writes_is_read_too(tmp_path):
    path = tmp_path / "error.json"
    content = {
        "message": {
            "message": "ValueError: no: really",
            "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000"},
        }
    }
    path.write_text(json.dumps(content))
    expected = Failure("ValueError", "no: really", 1_700_000_000 * 10**9, "Traceback ...")
    assert evidence.read_failure(path) == expected


@pytest.mark.parametrize("text", ["", "{", '{"message": "text only"}', "{}", "[]", "null"])
def test_other_files_are_no_evidence(tmp_path, text):
    path = tmp_path / "error.json"
    path.write_text(text)
    assert evidence.read_failure(path) is None


def test_a_missing_file_is_no_evidence(tmp_path):
    assert evidence.read_failure(tmp_path / "none") is None
    assert evidence.read_tail(tmp_path / "none") == ()
    assert evidence.read_stack(tmp_path / "none") == ()


# --------------------------------------------------------------------------------------------------- logs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("\n\n \n", ()),
        ("one\n\n  two  \n", ("one", "  two")),
        ("one\ntwo", ("one", "two")),
        (
            "".join(f"{number}\n" for number in range(100)),
            tuple(str(number) for number in range(88, 100)),
        ),
        ("x" * 500 + "\n", ("x" * 300,)),
        ("10 %\r20 %\r\n", ("10 %", "20 %")),
    ],
    ids=["empty", "blank", "two lines", "no line feed", "long", "wide", "progress bar"],
)
def test_the_last_lines_that_say_something(tmp_path, text, expected):
    path = tmp_path / "rank.out"
    path.write_bytes(text.encode())
    assert evidence.read_tail(path) == expected


_RAISED = 'Traceback (most recent call last):\n  File "/home/me/a.py", line 7, in f\n    f()\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epoch 3\n" + _RAISED + "Odd: gone\nepoch 4\n", "Odd: gone"),
        (_RAISED + "KeyError: 1\n" + _RAISED + "OSError: 2\n", "OSError: 2"),
        (
            _RAISED + "RuntimeError: \n\n  An attempt\n",
            "RuntimeError: An attempt",
        ),
        (_RAISED.replace("/home/me/a.py", "<frozen x>") + "KeyError\n", "KeyError"),
        ("MeanSquaredError: 0.3\nValueError: said, and not raised\n", ""),
        (_RAISED, ""),
        ("Exception ignored in: <function f>\n" + _RAISED + "OSError: 2\n", ""),
    ],
)
def test_the_last_exception_that_a_log_shows(text, expected):
    assert evidence.last_raised(text) == expected


def test_only_the_end_of_a_large_log_is_read(tmp_path):
    path = tmp_path / "rank.out"
    path.write_bytes(b"a" * 100_000 + "\nß\xff".encode("latin-1") + b"\nend\n")
    assert evidence.read_tail(path, lines=1) == ("end",)
    assert evidence.read_tail(path, lines=2, limit_bytes=8) == ("��", "end")


def test_stack_frames_of_c_do_not_hide_what_was_said(tmp_path):
    path = tmp_path / "rank.out"
    frames = "".join(
        f"frame #{number}: <unknown function> + 0x163b752 (0x7f in libtorch.so)\n"
        for number in range(20)
    )
    path.write_text(f"  what():  Watchdog caught collective operation timeout\n{frames}\n")
    assert any("Watchdog" in line for line in evidence.read_tail(path))


# ------------------------------------------------------------------------------------------------- stacks

DUMP = f"""\
Fatal Python error: Segmentation fault

Thread 0x00007f14a0000000 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/me/other.py", line 5 in background

Current thread 0x00007f14a5e27b80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/train.py", line 2 in inner
  File "/home/me/train.py", line 4 in <lambda>
  File "/home/me/train.py", line 4 in <module>
  File "{OURS}", line 192 in _run_script
  File "/usr/bin/paceline", line 8 in <module>

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


def test_the_stack_of_the_thread_that_crashed_ends_at_our_entry(tmp_path):
    path = tmp_path / "rank.crash"
    path.write_text(DUMP)
    assert evidence.read_stack(path) == (
        "/usr/lib/python3.11/ctypes/__init__.py:519 in string_at",
        "/home/me/train.py:2 in inner",
        "/home/me/train.py:4 in <lambda>",
        "/home/me/train.py:4 in <module>",
    )


@pytest.mark.parametrize(
    "text",
    ["", "Fatal Python error: Aborted\n"],
    ids=["empty", "cut"],
)
def test_a_dump_without_a_thread_has_no_stack(tmp_path, text):
    path = tmp_path / "rank.crash"
    path.write_text(text)
    assert evidence.read_stack(path) == ()


def test_if_a_librarys_own_thread_crashed_the_main_thread_is_told_from_the_users_line_on(tmp_path):
    path = tmp_path / "rank.crash"
    path.write_text(DUMP.replace("Current thread", "Thread"))
    first, *stack = evidence.read_stack(path)
    assert first == "a thread of a library crashed, while the main thread was in:"
    assert stack[-2:] == ["/home/me/train.py:4 in <lambda>", "/home/me/train.py:4 in <module>"]


# --------------------------------------------------------------------------------------- kernel and memory


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A fake / for the files of the kernel; call it with them."""

    def make(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(evidence, "Path", lambda *parts: tmp_path / "/".join(parts).lstrip("/"))
    return make


EVENTS = "low 0\nhigh 0\nmax 3\noom 5\noom_kill {}\noom_group_kill 0\n"
VMSTAT = "nr_free_pages 1\noom_kill 7\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 0),
        ({"proc/vmstat": VMSTAT}, 7),
        ({"proc/vmstat": "nr_free_pages 1\n"}, 0),
        (
            {
                "proc/vmstat": VMSTAT,
                "proc/self/cgroup": "0::/jobs/one\n",
                "sys/fs/cgroup/jobs/one/memory.events": EVENTS.format(2),
            },
            2,
        ),
        (
            {
                "proc/vmstat": VMSTAT,
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.events": EVENTS.format(0),
            },
            0,
        ),
        ({"proc/vmstat": VMSTAT, "proc/self/cgroup": "0::/gone\n"}, 7),
        ({"proc/vmstat": VMSTAT, "proc/self/cgroup": "4:memory:/jobs/one\n"}, 7),
    ],
)
def test_kills_for_lack_of_memory_are_the_cgroups_else_the_hosts(system, files, expected):
    system(files)
    assert evidence.count_oom_kills() == expected


@pytest.mark.parametrize(
    ("blocks", "free", "expected"),
    [
        (16384, 16384, ""),
        (16384, 2000, ""),
        (16384, 328, "98% of 64 MB"),
        (16384, 0, "100% of 64 MB"),
        (0, 0, ""),
    ],
)
def test_shared_memory_that_is_nearly_full(monkeypatch, blocks, free, expected):
    stats = SimpleNamespace(f_blocks=blocks, f_bavail=free, f_frsize=4096)
    monkeypatch.setattr(evidence.os, "statvfs", lambda path: stats)
    assert evidence.shm_pressure() == expected


def test_without_shared_memory_there_is_no_pressure(tmp_path):
    assert evidence.shm_pressure(str(tmp_path / "none")) == ""


# ------------------------------------------------------------------------------------------------ checkpoints


def checkpoint(folder, name, manifest=None):
    path = folder / name
    path.mkdir(parents=True)
    (path / "data.bin").write_text("x")
    if manifest is not None:
        (path / "manifest.json").write_text(manifest)
    return path


def test_the_last_checkpoint_is_the_one_with_the_largest_number(tmp_path):
    for serial, step in (
        (99_999, 450),
        (100_000, 20),
        (2, 9000),
    ):  # not the largest step, not the last by the alphabet
        commits.commit(tmp_path, step, serial=serial, seconds=2.5)
    assert evidence.last_checkpoint(tmp_path) == Checkpoint(
        str(tmp_path / "100000-step-20"), 100_000, 20, 2.5
    )


@pytest.mark.parametrize(
    ("name", "manifest"),
    [
        (".tmp-00002-step-9", commits.text(9)),
        (".00002-step-9.0a1b-77-host", commits.text(9)),
        ("00002-step-9", None),
        ("00002-step-9", ""),
        ("00002-step-9", "{"),
        ("00002-step-9", "[]"),
        ("00002-step-9", "{}"),
        ("00002-step-9", '{"step": "nine"}'),
        ("best", commits.text(9)),
        # what the library would not resume from
        ("00002-step-9", '{"step": 9}'),
        ("00002-step-9", commits.text(9).replace('"version": 1', '"version": 2')),
        ("00002-step-9", commits.text(9).replace('"step": 9', '"step": Infinity')),
        ("00002-step-9", "[" * 100_000),
        ("2-step-9", commits.text(9)),
        ("2026-backup", commits.text(9)),
    ],
)
def test_what_was_not_committed_is_no_checkpoint(tmp_path, name, manifest):
    checkpoint(tmp_path, name, manifest)
    assert evidence.last_checkpoint(tmp_path) is None
    commits.commit(tmp_path, 5)
    assert evidence.last_checkpoint(tmp_path).step == 5


def test_no_folder_has_no_checkpoint(tmp_path):
    assert evidence.last_checkpoint(tmp_path / "none") is None
    assert evidence.half_saved(tmp_path / "none", since_ns=0) == ""


def touch(path, when_ns):
    os.utime(path, ns=(when_ns, when_ns))


@pytest.mark.parametrize(
    ("name", "folder_ns", "file_ns", "found"),
    [
        (".00002.tmp", 5, 9, True),  # a file in it has grown
        (".00002.tmp", 9, 5, True),
        (".00002.tmp", 5, 5, False),  # left over from an earlier start
        (".trash-1", 9, 9, False),
        (".trash", 9, 9, False),
        ("00002-step-9", 9, 9, False),
    ],
)
def test_a_checkpoint_is_half_saved_if_it_was_written_to_since(
    tmp_path, name, folder_ns, file_ns, found
):
    path = checkpoint(tmp_path, name)
    touch(path / "data.bin", file_ns)
    touch(path, folder_ns)
    assert evidence.half_saved(tmp_path, since_ns=7) == (str(path) if found else "")


def test_nccl_logs_of_an_earlier_start_are_left_out(tmp_path):
    folder = RunDir(tmp_path)
    folder.create()
    for attempt in range(4):
        for rank in (0, 1000):
            folder.nccl(rank, attempt).write_text(f"{rank} {attempt}")
    assert sorted(evidence.read_nccl_logs(folder, since=2)) == ["0 2", "0 3", "1000 2", "1000 3"]
    assert len(evidence.read_nccl_logs(folder, since=0)) == 8
