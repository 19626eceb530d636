"""How a run ends: the summary of one that succeeded, the block of one that failed."""

from __future__ import annotations

import json
import re
import time

import pytest

from printed_json import read_json

START = "import os, sys, time\nrank = int(os.environ['RANK'])\n"


def failing(command, body, *options, ranks=3, **kwargs):
    command.script(START + body)
    ended = command.run("--nproc-per-node", ranks, *options, "train.py", **kwargs)
    assert ended.status == 1, ended.err
    assert len(ended.block.splitlines()) <= 16  # the rule's line and fifteen more
    return ended


def test_success_ends_with_four_lines_where_ranks_trained_apart(command):
    command.script(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "net = torch.nn.Linear(4, 1)\nopt = torch.optim.SGD(net.parameters(), lr=.1)\n"
        "for epoch in range(2):\n"
        "    for (x,) in DataLoader(TensorDataset(torch.ones(20, 4)), batch_size=2):\n"
        "        net(x).sum().backward(); opt.step(); opt.zero_grad()\n"
        "print('trained')\n"
    )
    ended = command.run("--nproc-per-node", "2", "train.py")
    assert ended.status == 0, ended.err
    assert ended.out == "trained\n"
    first, apart, second, third = ended.err.splitlines()[-4:]
    assert apart.endswith("each trained a model of its own")
    assert re.fullmatch(
        r"paceline: done: 2 ranks, 20 steps in [\d.]+ s, [\d.]+ steps/s a rank", first
    )
    assert re.fullmatch(
        r"paceline: (waiting for data: [\d.]+% of the time · slowest rank: [01] on \S+, [\d.]+x the median outside "
        r"backward|step [\d.]+ ms: .*)",
        second,
    )
    assert third == f"paceline: run folder {ended.run_dir}"
    events = [
        json.loads(line)
        for line in (command.folder / ended.run_dir / "events.jsonl").read_text().splitlines()
    ]
    assert [event["kind"] for event in events] == ["start", "end", "outcome"]
    assert events[-1]["summary"]["steps"] == 20
    assert events[-1]["summary"]["ungrouped"]
    assert events[-1]["exit_status"] == 0


def test_ranks_with_a_process_group_did_not_train_apart(command):
    command.script(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "net = torch.nn.Linear(4, 1)\nopt = torch.optim.SGD(net.parameters(), lr=.1)\n"
        "for step in range(3):\n    net(torch.ones(2, 4)).sum().backward(); opt.step()\n"
        "dist.destroy_process_group()\n"
    )
    ended = command.run("--nproc-per-node", "2", "train.py")
    assert ended.status == 0, ended.err
    assert "done: 2 ranks, 3 steps" in ended.err
    assert "a model of its own" not in ended.err


def test_an_exception_on_one_rank_is_named_with_the_users_line(command):
    ended = failing(
        command,
        "def load(index):\n    if rank == 1: raise ValueError('bad label 12')\nload(3)\ntime.sleep(30)\n",
    )
    assert (
        "cause: rank 1 raised ValueError: bad label 12   [RUN002 script-error-on-one-rank]"
        in ended.block
    )
    assert re.search(r"train\.py:4 in load: if rank == 1: raise ValueError", ended.block)
    assert "ranks 0, 2: stopped because rank 1 failed" in ended.block
    assert f"exit status 1 · run folder {ended.run_dir}" in ended.block.splitlines()[-1]
    log = (command.folder / ended.run_dir / "logs" / "rank-001.out").read_text()
    assert log.startswith("Traceback (most recent call last):\n  File ")
    assert (
        "paceline" not in log.split("train.py")[0].split("File")[0]
    )  # none of our frames above the script's
    assert log.count("File") == 2
    assert ended.seconds < 20


def test_identical_exceptions_are_folded(command):
    ended = failing(command, "raise KeyError('the same everywhere')\n", ranks=4)
    assert "cause: ranks 0-3 raised KeyError: 'the same everywhere'" in ended.block
    assert "stopped because" not in ended.block


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "os._exit(3)",
            "rank 1 ended with exit code 3 and left no exception   [RUN007 rank-ended-early]",
        ),
        (
            "sys.exit('no data')",
            "rank 1 ended itself with sys.exit(no data)   [RUN002 script-error-on-one-rank]",
        ),
        ("import not_installed", "No module named 'not_installed'   [RUN003 module-not-found]"),
        (
            "os.kill(os.getpid(), 9)",
            "rank 1 was killed by SIGKILL; who sent it is not visible   [RUN004",
        ),
        (
            "os.kill(os.getpid(), 15)",
            "rank 1 was ended by SIGTERM, which this launcher did not send",
        ),
        ("os.kill(os.getpid(), 7)", "rank 1 was ended by SIGBUS"),
        (
            "import ctypes; ctypes.string_at(0)",
            "rank 1 crashed in native code (SIGSEGV)   [RUN006 rank-segfault]",
        ),
    ],
    ids=["_exit", "sys.exit", "import", "kill", "term", "bus", "segv"],
)
def test_each_way_to_end_is_explained(command, body, expected):
    ended = failing(command, f"if rank == 1:\n    {body}\ntime.sleep(30)\n")
    assert expected in ended.block
    assert "ranks 0, 2: stopped because rank 1 failed" in ended.block
    if "SIGBUS" in expected or "SIGSEGV" in expected:
        assert "train.py:4 in <module>" in ended.block  # the Python line at the crash
    if "SIGBUS" in expected:
        assert "/dev/shm is" in ended.block


REDIRECTED = (
    "time.sleep(rank)\n"
    "if rank == 0: sys.stderr = open(os.devnull, 'w')\n"
    "else: os.dup2(os.open('mine.txt', os.O_CREAT | os.O_WRONLY), 2)\n"
)


@pytest.mark.parametrize(
    ("body", "shown", "not_shown"),
    [
        (
            "os.closerange(3, 1024)\nif rank == 1: os.kill(os.getpid(), signal.SIGUSR1)\n",
            ("SIGUSR1", "train.py:5 in <module>", "why: nothing in the script handles it"),
            ("who did",),
        ),
        (f"{REDIRECTED}if rank: raise ValueError('x')", ("traceback: less mine.txt",), ("logs/",)),
        (f"{REDIRECTED}if not rank: raise ValueError('x')", ("cause: rank 0",), ("traceback:",)),
    ],
    ids=["descriptors closed", "to a file", "to nowhere"],
)
def test_a_rank_that_takes_away_what_it_is_watched_by_is_told_with_what_there_is(
    command, body, shown, not_shown
):
    ended = failing(command, f"import signal\n{body}", ranks=2)
    assert all(text in ended.block for text in shown), ended.block
    assert not any(text in ended.block for text in not_shown), ended.block


def test_the_kernels_count_is_the_evidence_for_a_kill_for_memory(command):
    """A cgroup of 120 MB: the kernel kills the rank that takes more, and counts it."""
    ended = None
    try:
        group = make_memory_group(120 << 20)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        command.script(
            START
            + f"if rank == 1:\n    open('{group}/cgroup.procs', 'w').write(str(os.getpid()))\n"
            "    hog = [bytearray(1 << 20) for _ in range(400)]\ntime.sleep(30)\n"
        )
        ended = command.run("--nproc-per-node", "2", "train.py")
    finally:
        remove_group(group)
    assert "because memory ran out" in ended.block
    assert "rank-died-oom-killer" in ended.block
    assert "the kernel counted 1 kill(s) for lack of memory during this run" in ended.block


def make_memory_group(limit):
    import os
    import uuid
    from pathlib import Path

    if os.geteuid() != 0:
        raise PermissionError("needs root")
    v2 = Path("/sys/fs/cgroup/cgroup.controllers")
    if v2.exists():
        if "memory" not in v2.read_text():
            raise OSError("the memory controller is not available")
        control = Path("/sys/fs/cgroup/cgroup.subtree_control")
        if "memory" not in control.read_text():
            control.write_text("+memory")
        group = Path("/sys/fs/cgroup") / f"paceline-{uuid.uuid4().hex[:8]}"
        group.mkdir()
        (group / "memory.max").write_text(str(limit))
        return group
    group = Path("/sys/fs/cgroup/memory") / f"paceline-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(limit))
    return group


def remove_group(group):
    for _ in range(100):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.05)


CROWD = """
import signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
cause = int(sys.argv[1])
if rank == cause:
    def broken():
        raise RuntimeError("the real cause")
    broken()
# The others fail by themselves, also where the launcher is quicker to end them.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(0.02 * rank)
dist.all_reduce(x)  # their peer is gone
"""


@pytest.mark.parametrize(
    "attempt", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 10))]
)
def test_the_cause_is_named_when_all_ranks_fail_within_a_second(command, attempt):
    command.script(START + CROWD)
    cause = attempt % 4
    ended = command.run("--nproc-per-node", "4", "train.py", cause)
    assert ended.status == 1
    assert f"cause: rank {cause} raised RuntimeError: the real cause" in ended.block
    assert "train.py:11 in broken" in ended.block
    others = [rank for rank in range(4) if rank != cause]
    folded = {(1, 2, 3): "1-3", (0, 2, 3): "0, 2-3", (0, 1, 3): "0-1, 3", (0, 1, 2): "0-2"}[
        tuple(others)
    ]
    assert f"ranks {folded}: stopped because rank {cause} failed" in ended.block
    # what rank 0 shows is its own failure, or one line about that of another
    log = (command.folder / ended.run_dir / "logs" / "rank-000.out").read_text(encoding="utf-8")
    assert log.count("Traceback (most recent call last)") == 1
    above = ended.err.partition("── paceline")[0].splitlines()[1:]
    if cause == 0:
        assert above[-1] == "[rank0]: RuntimeError: the real cause"
    else:
        (line,) = above
        assert line.startswith("rank 0: RuntimeError: Connection closed by peer"), ended.err
        assert line.endswith(f"(follows from rank {cause}; less {ended.run_dir}/logs/rank-000.out)")


@pytest.mark.parametrize(
    ("odd", "cause"),
    # of sizes that differ, gloo ends one rank or both: then the line or the operation is the cause
    [("os._exit(0)", "RUN007"), ("dist.all_reduce(torch.ones(9)); time.sleep(60)", "RUN0[12]0")],
)
def test_a_victim_has_one_line_above_a_cause_that_raised_nothing(command, odd, cause):
    begin = START + "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    command.script(f"{begin}if rank == 1:\n    {odd}\ndist.all_reduce(torch.ones(1))\n")
    ended = command.run("--nproc-per-node", "2", "train.py")
    above, block = ended.err.split("── paceline")
    assert block.partition("\n")[2].startswith("likely cause: ") and re.search(cause, block)
    assert "Traceback" not in above
    log = (command.folder / ended.run_dir / "logs" / "rank-000.out").read_text(encoding="utf-8")
    assert ("Traceback" in log) == ("rank 0: RuntimeError" in above)


def test_losses_that_are_nan_to_the_end_are_told_once_and_end_nothing(command):
    command.script(
        "import sys\nfor epoch in range(4):\n    print(f'epoch {epoch} loss', sys.argv[1 + epoch // 2])\n"
    )
    for losses, times in ((("0.7", "nan"), 1), (("nan", "0.7"), 0)):
        ended = command.run("--nproc-per-node", 2, "train.py", *losses)
        assert ended.status == 0
        assert ended.err.count("warning RUN056 loss-not-finite: ") == times, ended.err
        assert ended.err.count("epoch 3 loss nan") == times
        assert "paceline: done: 2 ranks" in ended.err


def test_a_cause_that_is_a_step_behind_its_victims_is_waited_for(command):
    """The rank that fails takes 0.3 s to end; the victim is gone at once."""
    ended = failing(
        command,
        "import torch, torch.distributed as dist, threading\n"
        "dist.init_process_group('gloo')\n"
        "if rank == 1:\n"
        "    threading.Timer(0.3, lambda: None).start()\n"
        "    dist.destroy_process_group()\n"
        "    time.sleep(0.2)\n"
        "    raise ValueError('late but guilty')\n"
        "dist.all_reduce(torch.ones(1))\n",
        ranks=2,
    )
    assert "cause: rank 1 raised ValueError: late but guilty" in ended.block


@pytest.mark.alone
def test_a_busy_rank_does_not_hold_the_run(command):
    ended = failing(
        command,
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if rank == 1:\n"
        "    open('failed-at', 'w').write(repr(time.time()))\n"
        "    raise RuntimeError('one fails')\n"
        "time.sleep(60)\n",
    )
    took = time.time() - float((command.folder / "failed-at").read_text())
    assert took < 5  # the ranks end within 2 s, the command soon after
    stopped = [
        json.loads(line)
        for line in (command.folder / ended.run_dir / "events.jsonl").read_text().splitlines()
    ]
    ends = next(event for event in stopped if event["kind"] == "end")["ends"]
    failed_ns = next(end["failure"]["time_ns"] for end in ends if end["rank"] == 1)
    assert all(end["time_ns"] - failed_ns < 2e9 for end in ends)


def test_a_crash_in_the_interpreters_teardown_is_no_failure(command):
    command.script(
        "import os\nclass Last:\n    def __del__(self): os.kill(os.getpid(), 6)\nlast = Last()\nprint('result: 42')\n"
    )
    ended = command.run("--nproc-per-node", "2", "train.py")
    assert ended.status == 0, ended.err
    assert ended.out == "result: 42\n"
    assert (
        "note: ranks 0-1 crashed in the interpreter's teardown, after the script's end" in ended.err
    )


def test_a_crash_while_a_thread_still_works_is_a_failure(command):
    command.script(
        "import os, threading, time\n"
        "def work():\n    time.sleep(0.5); os.kill(os.getpid(), 6)\n"
        "threading.Thread(target=work).start()\n"
    )
    assert command.run("train.py").status == 1


def test_a_loader_workers_exception_is_shown_with_its_own_line(command):
    ended = failing(
        command,
        "from torch.utils.data import DataLoader\n"
        "class Samples:\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, index):\n"
        "        if index == 5 and rank == 0: raise OSError('cannot decode sample 5')\n"
        "        return index\n"
        "if __name__ == '__main__':\n"
        "    list(DataLoader(Samples(), num_workers=2)); time.sleep(30)\n",
        ranks=2,
    )
    assert "rank 0: a DataLoader worker raised OSError: cannot decode sample 5" in ended.block
    assert "train.py:7 in __getitem__" in ended.block


def test_restart_goes_on_and_says_why(command):
    command.script(
        START + "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1); dist.all_reduce(x)\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and rank == 1: raise RuntimeError('first time')\n"
        "dist.all_reduce(x)\n"
        "print('sum', x.item(), 'restarts', os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "dist.destroy_process_group()\n"
    )
    ended = command.run("--nproc-per-node", "2", "--max-restarts", "1", "train.py")
    assert ended.status == 0, ended.err
    assert ended.out == "sum 4.0 restarts 1\n"
    assert (
        "paceline: rank 1 raised RuntimeError: first time; ranks were started again (1 of 1)"
        in ended.err
    )
    logs = command.folder / ended.run_dir / "logs"
    assert "first time" in (logs / "rank-001.out").read_text()
    assert (logs / "rank-001.attempt-1.out").exists()


def test_restarts_run_out(command):
    command.script("raise RuntimeError('every time')")
    ended = command.run("--nproc-per-node", "2", "--max-restarts", "2", "train.py")
    assert ended.status == 1
    assert "exit status 1 after 3 attempts" in ended.block


def test_json_prints_the_same_finding(command):
    command.script("raise ValueError('bad')")
    ended = command.run("--nproc-per-node", "2", "--json", "train.py")
    report = read_json("run", ended.out)
    assert report["exit_status"] == 1
    finding = report["findings"][0]
    assert (finding["name"], finding["code"]) == ("user-exception", "RUN001")
    assert set(finding) == {"code", "name", "severity", "what", "where", "evidence", "why", "fix"}


def test_the_probe_can_be_turned_off(command):
    command.script(
        "import torch\nnet = torch.nn.Linear(1, 1); opt = torch.optim.SGD(net.parameters(), lr=.1)\n"
        "for _ in range(5): net(torch.ones(1)).backward(); opt.step()\n"
        "print(torch.autograd.backward.__module__, hasattr(torch.autograd.backward, '__wrapped__'))\n"
    )
    ended = command.run("--no-probe", "train.py")
    assert ended.out == "torch.autograd False\n"
    assert "no optimizer steps seen" in ended.err


THREAD = """
import os, sys, threading, time
def load():
    raise OSError("the file has gone")
thread = threading.Thread(target=load, name="loader")
if os.environ["RANK"] == "1":
    thread.start()
    thread.join()
    if "fail" in sys.argv:
        raise ValueError("no samples")
else:
    time.sleep(0.5)
"""


def test_an_exception_in_a_thread_is_in_the_report_and_no_cause(command):
    command.script(THREAD)
    ended = command.run("--nproc-per-node", "2", "train.py")
    assert ended.status == 0, ended.err
    assert re.search(
        r"note: in rank 1, thread loader raised OSError: the file has gone \(.*train.py:4\)",
        ended.err,
    )


def test_an_exception_in_a_thread_stands_beside_the_cause(command):
    command.script(THREAD)
    ended = command.run("--nproc-per-node", "2", "train.py", "fail")
    assert "rank 1 raised ValueError: no samples" in ended.block
    assert "in rank 1, thread loader raised OSError: the file has gone" in ended.block


def test_a_port_that_one_rank_replaces_is_told_while_the_ranks_wait_and_at_the_end(command):
    ended = failing(
        command,
        "import datetime, torch.distributed as dist\n"
        "if rank == 1: os.environ['MASTER_PORT'] = '4001'\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=6))\n",
        ranks=2,
    )
    before = ended.err.partition("── paceline")[0]
    assert "notice: rank 1 waits for the other ranks" in before
    assert "train.py:4); the launcher set" in before
    assert "in rank 1, MASTER_PORT=4001 (" in ended.block
    assert "train.py:4); the launcher set" in ended.block


def test_a_port_that_all_ranks_replace_is_not_told(command):
    command.script(
        START + "import torch.distributed as dist\n"
        "os.environ.update(MASTER_PORT=str(int(os.environ['MASTER_PORT']) + 1),\n"
        "                  TORCHELASTIC_USE_AGENT_STORE='False')\n"
        "dist.init_process_group('gloo')\n"
    )
    ended = command.run("--nproc-per-node", 2, "train.py")
    assert ended.status == 0, ended.err
    assert "MASTER_PORT" not in ended.err
