"""From how ranks ended to the likely cause: tables of endings, with the texts that torch 2.13 prints."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from signal import (
    SIGABRT,
    SIGALRM,
    SIGBUS,
    SIGFPE,
    SIGKILL,
    SIGRTMIN,
    SIGSEGV,
    SIGTERM,
    SIGUSR1,
    SIGXCPU,
    SIGXFSZ,
)

import pytest

from paceline.diagnose.explain import judge as explain_judge
from paceline.errors import Finding
from paceline.launch.channel import silence
from paceline.launch.monitor.position import Frame, Position
from paceline.launch.outcome.block import render as block
from paceline.launch.outcome.rank_exit import Failure, RankExit
from paceline.launch.outcome.root_cause import Verdict, broken_in_stop, judge, other_troubles
from paceline.launch.outcome.weight import CAUSE, EARLY_EXIT, SUSPECT, UNCLEAR, VICTIM, weigh
from paceline.launch.probe.checks import non_finite
from paceline.text.plain_data import read_as
from paceline.text.wording import fold

S = 1_000_000_000  # a second in nanoseconds
ONE, USER = "script-error-on-one-rank", "user-exception"
DIED, EARLY = "rank-died-signal", "rank-ended-early"


# -------------------------------------------------------------------------------------------- what ranks say

GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = (
    GLOO
    + "pair.cc:553] Connection closed by peer [127.0.0.1]:27554. This is typically caused by a remote worker "
    "crashing. Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
)
RESET = (
    GLOO
    + "pair.cc:537] Read error [127.0.0.1]:37292: Connection reset by peer. This is typically caused by a remote "
    "worker hanging or bugs in the application. Check the logs of the remote worker before reporting an error."
)
NO_ROUTE = GLOO + "pair.cc:537] Read error [10.77.0.2]:29878: No route to host"
REFUSED = GLOO + "pair.cc:224] connect [127.0.1.1]:4127: Connection refused"
TIMED_OUT = (
    GLOO + "unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"
)
NOT_REACHED = GLOO + "pair.cc:152] timed out connecting: SO_ERROR: Connection timed out, remote="
MONITORED = (
    "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 1000 ms\n Original exception: \n"
    + TIMED_OUT
)
MISMATCH = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
    "  what():  [enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:446] "
    "op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size. "
    "Is there a distributed collective mismatch in your code? ",
)
DETAIL = (
    "Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
    "SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[2]), but Rank 1 is running collective: ..."
)
NCCL_REMOTE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, remote process exited or there was "
    "a network error, NCCL version 2.27.5\nncclRemoteError: A call failed possibly due to a network error or a remote "
    "process exiting prematurely.\nLast error:\nsocketPollConnect: connect to 10.0.0.2<41234> returned error"
)
NCCL_CUDA = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed."
)
WATCHDOG = (
    "[rank0]:[E1121 00:31:50.707703781 ProcessGroupNCCL.cpp:688] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600013 "
    "milliseconds before timing out.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
)
JOIN = "Timed out after 901 seconds waiting for clients. 1/2 clients joined."
NO_STORE = (
    "The client socket has timed out after 60000ms while trying to connect to (10.0.0.9, 29500)."
)
PORT_TAKEN = (
    "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)
WORKER = (
    "Caught ValueError in DataLoader worker process 0.\n"
    "Original Traceback (most recent call last):\n"
    '  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop\n'
    "    data = fetcher.fetch(index)  # type: ignore[possibly-undefined]\n"
    "           ^^^^^^^^^^^^^^^^^^^^\n"
    '  File "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch\n'
    "    data = [self.dataset[idx] for idx in possibly_batched_index]\n"
    '  File "/home/me/data.py", line 19, in __getitem__\n'
    '    raise ValueError(f"bad sample {i}")\n'
    "ValueError: bad sample 3\n"
)
HTTP = (
    "HTTPConnectionPool(host='web', port=80): Max retries exceeded with url: /data (Caused by NewConnectionError("
    "'<urllib3.connection.HTTPConnection object at 0x7f>: Failed to establish a new connection: "
    "[Errno 111] Connection refused'))"
)

IN_COLLECTIVE = (
    Frame("/home/me/train.py", 40, "step", "dist.all_reduce(total)", user=True),
    Frame(
        "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py",
        83,
        "wrapper",
        "return func()",
    ),
    Frame(
        "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
        3252,
        "all_reduce",
        "work.wait()",
    ),
)
IN_BACKWARD = (
    Frame("/home/me/train.py", 41, "step", "loss.backward()", user=True),
    Frame(
        "/venv/lib/python3.11/site-packages/torch/autograd/graph.py",
        979,
        "_engine_run_backward",
        "return ...",
    ),
)


REQUESTS = Frame(
    "/venv/lib/python3.11/site-packages/requests/adapters.py",
    700,
    "send",
    "raise ConnectionError(e)",
)
DDP = Frame(
    "/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py",
    1661,
    "forward",
    "self.module()",
)


def own(line=12, function="main", file="/home/me/train.py"):
    return (Frame(file, line, function, "value = compute()", user=True),)


def printed(kind, message, frames):
    lines = ["Traceback (most recent call last):"]
    for frame in frames:
        lines += [
            f'  File "{frame.file}", line {frame.line}, in {frame.function}',
            f"    {frame.code}",
        ]
    return "\n".join([*lines, f"{kind}: {message}"])


def raised(kind="ValueError", message="no", *, at=5, frames=None):
    frames = own() if frames is None else frames
    return Failure(kind, message, round(at * S), printed(kind, message, frames), frames)


def end(rank=0, code=1, *, at=None, **fields):
    """How a rank ended, a failure by default; ``at`` is in seconds, as it is for what was raised."""
    time_ns = fields["failure"].time_ns + S // 10 if fields.get("failure") else 5 * S
    usual = {"host": "node-a", "pid": 100 + rank, "log": f"logs/rank-{rank:03d}.out"}
    usual["time_ns"] = time_ns if at is None else at * S
    return RankExit(rank=rank, code=code, **{**usual, **fields})


def failed(rank=0, *words, **when_and_where):
    """The end of a rank that raised."""
    return end(rank, failure=raised(*words, **when_and_where))


def killed(signum, rank=0, **fields):
    return end(rank, code=-signum, **fields)


def victim(rank, at=5, message=CLOSED):
    return failed(rank, "RuntimeError", message, at=at, frames=IN_BACKWARD)


def stopped(rank):
    return killed(SIGTERM, rank, stopped="another rank failed", at=9)


def fine(rank):
    return end(rank, code=0)


# ------------------------------------------------------------------------------------------------- weighing


@pytest.mark.parametrize(
    ("kind", "message", "frames", "weight"),
    [
        ("ValueError", "no", own(), CAUSE),
        ("AssertionError", "", own(), CAUSE),
        ("SystemExit", "2", own(), CAUSE),
        ("KeyboardInterrupt", "", own(), CAUSE),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", own(), CAUSE),
        ("RuntimeError", CLOSED, IN_COLLECTIVE, VICTIM),
        ("RuntimeError", CLOSED, IN_BACKWARD, VICTIM),
        ("RuntimeError", RESET, IN_BACKWARD, VICTIM),
        ("RuntimeError", NO_ROUTE, IN_BACKWARD, VICTIM),
        ("RuntimeError", REFUSED, own(), VICTIM),
        ("RuntimeError", TIMED_OUT, IN_BACKWARD, SUSPECT),
        ("RuntimeError", MONITORED, IN_COLLECTIVE, SUSPECT),
        ("RuntimeError", NOT_REACHED, own(), SUSPECT),
        ("RuntimeError", GLOO + "pair.h:311] Connect timeout [67.16.1.0]", own(), SUSPECT),
        ("RuntimeError", DETAIL, IN_COLLECTIVE, SUSPECT),
        ("DistNetworkError", "Broken pipe", IN_COLLECTIVE, VICTIM),
        ("DistNetworkError", "failed to recv, got 0 bytes", own(), VICTIM),
        (
            "DistNetworkError",
            "Connection was likely closed. Did the remote server shutdown or crash?",
            own(),
            VICTIM,
        ),
        ("DistStoreError", "wait timeout after 300000ms, keys: /a", IN_COLLECTIVE, SUSPECT),
        ("DistStoreError", "Socket Timeout", IN_COLLECTIVE, SUSPECT),
        ("DistBackendError", NCCL_REMOTE, IN_COLLECTIVE, VICTIM),
        ("DistBackendError", "NCCL communicator was aborted on rank 0.", IN_COLLECTIVE, VICTIM),
        ("DistBackendError", NCCL_CUDA, IN_COLLECTIVE, CAUSE),
        ("ValueError", WORKER, IN_BACKWARD, CAUSE),
        (
            "ProtocolError",
            "('Connection aborted.', RemoteDisconnected('closed'))",
            (*own(), REQUESTS),
            CAUSE,
        ),
        ("DistNetworkError", PORT_TAKEN, IN_COLLECTIVE, CAUSE),
        ("DistNetworkError", NO_STORE, IN_COLLECTIVE, SUSPECT),
        ("DistStoreError", JOIN, IN_COLLECTIVE, SUSPECT),
    ],
)
def test_exceptions(kind, message, frames, weight):
    assert weigh(failed(0, kind, message, frames=frames)) == weight


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ConnectionError", HTTP),
        ("ConnectionRefusedError", "[Errno 111] Connection refused"),
        ("BrokenPipeError", "[Errno 32] Broken pipe"),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        ("OSError", "Write error: disk full"),
    ],
)
@pytest.mark.parametrize(
    "frames",
    [
        pytest.param((*own(), REQUESTS), id="a script"),
        pytest.param((*own(file="/home/me/distributed/train.py"), REQUESTS), id="its folder"),
        pytest.param((*own(file="/home/me/train_nccl.py"), REQUESTS), id="its name"),
        pytest.param((*own(), DDP, *own(9, "forward"), REQUESTS), id="inside a DDP forward"),
    ],
)
def test_a_users_own_broken_connection_is_a_cause(kind, message, frames):
    ended = failed(0, kind, message, frames=frames)
    assert weigh(ended) == CAUSE
    assert judge([ended]).finding.name == USER


DURING = "During handling of the above exception, another exception occurred:"
DIRECT = "The above exception was the direct cause of the following exception:"


def chained(first, how, last):
    """An exception that came out of the handling of another, or was raised from it."""
    return replace(last, traceback=f"{first.traceback}\n\n{how}\n\n{last.traceback}")


@pytest.mark.parametrize(
    ("first", "how", "last", "weight"),
    [
        (raised("RuntimeError", CLOSED), DIRECT, raised("TrainingError", "step 3 failed"), VICTIM),
        (
            raised("RuntimeError", TIMED_OUT),
            DIRECT,
            raised("TrainingError", "step 3 failed"),
            SUSPECT,
        ),
        (
            raised("DistBackendError", NCCL_REMOTE),
            DURING,
            raised("TrainingError", "step 3 failed"),
            VICTIM,
        ),
        (raised("ValueError", "bad sample"), DURING, raised("RuntimeError", CLOSED), CAUSE),
        (
            raised("ValueError", "bad sample"),
            DIRECT,
            raised("TrainingError", "step 3 failed"),
            CAUSE,
        ),
        (
            raised("ConnectionRefusedError", "Connection refused"),
            DURING,
            raised("ValueError", "no data"),
            CAUSE,
        ),
        (raised("StopIteration", ""), DURING, raised("RuntimeError", CLOSED), VICTIM),
        (raised("KeyError", "'labels'"), DURING, raised("RuntimeError", CLOSED), CAUSE),
    ],
)
def test_chains_of_exceptions(first, how, last, weight):
    assert weigh(end(failure=chained(first, how, last))) == weight


def test_the_first_of_a_chain_is_shown():
    failure = chained(
        raised("ValueError", "bad sample"), DIRECT, raised("TrainingError", "step 3 failed")
    )
    finding = told(end(0, failure=failure))
    assert finding.what == "rank 0 raised TrainingError: step 3 failed"
    assert finding.evidence[-1] == "first: ValueError: bad sample"


@pytest.mark.parametrize(
    ("raised_at", "stopped_at", "weight"), [(4, 5 * S, CAUSE), (6, 5 * S, VICTIM), (6, 0, CAUSE)]
)
def test_what_is_raised_after_the_order_to_stop_is_no_cause(raised_at, stopped_at, weight):
    assert weigh(end(stopped="x", stopped_ns=stopped_at, failure=raised(at=raised_at))) == weight


@pytest.mark.parametrize(
    ("ended", "weight"),
    [
        (end(code=3), CAUSE),
        (killed(SIGKILL), CAUSE),
        (killed(SIGSEGV), CAUSE),
        (killed(SIGBUS), CAUSE),
        (killed(SIGTERM), CAUSE),
        (killed(SIGABRT), UNCLEAR),
        (killed(SIGABRT, log_tail=("python: assertion failed", "Aborted")), UNCLEAR),
        (killed(SIGABRT, log_tail=MISMATCH), SUSPECT),
        (killed(SIGABRT, log_tail=("terminate called ...", f"  what():  {CLOSED}")), VICTIM),
        (killed(SIGABRT, log_tail=("terminate called ...", f"  what():  {REFUSED}")), VICTIM),
        (killed(SIGABRT, log_tail=tuple(NCCL_REMOTE.splitlines())), VICTIM),
        (killed(SIGTERM, stopped="another rank failed"), VICTIM),
        (killed(SIGKILL, stopped="another rank failed"), VICTIM),
        (end(code=None), VICTIM),
        (end(code=1, stopped="x", failure=raised("KeyboardInterrupt", "")), VICTIM),
        (end(code=1, stopped="x", failure=raised("SystemExit", "143")), VICTIM),
        (end(code=1, stopped="x", failure=raised("SignalException", "got SIGTERM")), VICTIM),
        (end(code=1, stopped="x", failure=raised("ValueError", "its own")), CAUSE),
        (killed(SIGABRT, log_tail=WATCHDOG), SUSPECT),
        (
            killed(
                SIGABRT,
                log_tail=("wandb: Connection refused, retrying", "python: assertion failed"),
            ),
            UNCLEAR,
        ),
        (
            end(code=1, log_tail=("Traceback (most recent call last):", f"RuntimeError: {CLOSED}")),
            VICTIM,
        ),
        (end(code=75), EARLY_EXIT),
        (end(code=75, stopped="SIGTERM to the launcher"), EARLY_EXIT),
        (killed(SIGABRT, left=True, log_tail=(CLOSED,)), EARLY_EXIT),
    ],
)
def test_endings_without_an_exception_of_their_own(ended, weight):
    assert weigh(ended) == weight


# -------------------------------------------------------------------------------------------------- judging


def seen(verdict: Verdict):
    return verdict.finding.name, verdict.causes, verdict.victims


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        # who failed first is not always who failed
        ([victim(0, at=1), failed(1, at=2)], (ONE, (1,), (0,))),
        ([failed(0, at=1), victim(1, at=2)], (ONE, (0,), (1,))),
        (
            [victim(0, at=1), victim(1, at=1), end(2, code=-9, at=3), victim(3, at=2)],
            (DIED, (2,), (0, 1, 3)),
        ),
        ([victim(0, at=1), end(1, code=3, at=2)], (EARLY, (1,), (0,))),
        # likelier causes first, whatever the time
        ([failed(0, "RuntimeError", TIMED_OUT, at=1), failed(1, at=2)], (ONE, (1,), (0,))),
        ([killed(SIGABRT, 0, at=1), failed(1, at=2)], (ONE, (1,), (0,))),
        (
            [killed(SIGABRT, 0, log_tail=MISMATCH, at=2), victim(1, at=1)],
            ("collective-mismatch", (0,), (1,)),
        ),
        (
            [failed(0, "RuntimeError", TIMED_OUT, frames=IN_BACKWARD), victim(1, at=1)],
            ("collective-timeout", (0,), (1,)),
        ),
        # several at once
        ([failed(rank, at=rank) for rank in range(4)], (USER, (0, 1, 2, 3), ())),
        ([victim(0, at=1), *(failed(rank, at=rank) for rank in (1, 2))], (USER, (1, 2), (0,))),
        ([failed(0, at=2, frames=own(12)), failed(1, at=1, frames=own(99))], (ONE, (1,), ())),
        ([failed(0, "KeyError", "'a'", at=2), failed(1, "ValueError", "b", at=1)], (ONE, (1,), ())),
        ([end(0, code=3), end(1, code=3), end(2, code=4, at=6)], (EARLY, (0, 1), ())),
        ([failed(rank, at=1) for rank in (1, 0)], (USER, (0, 1), ())),
        # the others went on, or were ended
        ([fine(0), failed(1), stopped(2)], (ONE, (1,), (2,))),
        ([end(0, code=None), failed(1)], (ONE, (1,), (0,))),
        ([stopped(0), killed(SIGTERM, 1, at=1)], (DIED, (1,), (0,))),
        ([failed(0)], (USER, (0,), ())),
        # to be resumed, but not all of them
        ([end(0, code=75, at=1), failed(1, at=2)], (ONE, (1,), ())),
        ([end(0, code=75, at=1), killed(SIGABRT, 1, at=2), stopped(2)], (DIED, (1,), (2,))),
        ([end(0, code=75, at=2), victim(1, at=1), stopped(2)], (EARLY, (0,), (1, 2))),
        ([end(0, code=75), failed(1, "RuntimeError", TIMED_OUT)], (EARLY, (0,), (1,))),
        ([end(0, code=75), stopped(1), end(2, code=75)], (EARLY, (0, 2), (1,))),
        # names of exceptions
        (
            [fine(0), failed(1, "ModuleNotFoundError", "No module named 'x'")],
            ("module-not-found", (1,), ()),
        ),
        ([failed(0, "ImportError", "cannot import name")], ("module-not-found", (0,), ())),
        ([failed(0, "OutOfMemoryError", "CUDA out of memory.")], ("cuda-oom", (0,), ())),
        ([failed(0, "RuntimeError", "CUDA out of memory.")], ("cuda-oom", (0,), ())),
        ([failed(0, "RuntimeError", DETAIL)], ("collective-mismatch", (0,), ())),
        (
            [failed(0, "RunError", "error NET002 port-held-by-other: ...")],
            ("port-held-by-other", (0,), ()),
        ),
        (
            [
                failed(
                    0,
                    "RuntimeError",
                    "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's "
                    "workers are out of shared memory. Please try to raise your shared memory limit.",
                )
            ],
            ("dataloader-shm-too-small", (0,), ()),
        ),
        # nobody but victims
        ([victim(0, at=2), victim(1, at=1)], ("peer-rank-died", (), (0, 1))),
        ([stopped(0), stopped(1)], ("peer-rank-died", (), (0, 1))),
        ([], ("launcher-fault", (), ())),
        ([fine(0), fine(1)], ("launcher-fault", (), ())),
        (
            [
                killed(SIGABRT, 0, at=1),
                end(1, stopped="another rank failed", failure=raised("SIGTERMException", "", at=2)),
            ],
            (DIED, (0,), (1,)),
        ),
        (
            [failed(0, "DistNetworkError", PORT_TAKEN, at=1, frames=IN_COLLECTIVE), stopped(1)],
            ("port-in-use", (0,), (1,)),
        ),
        (
            [killed(SIGABRT, 0, log_tail=WATCHDOG, at=1), victim(1, at=1)],
            ("collective-timeout", (0,), (1,)),
        ),
        (
            [
                end(
                    0,
                    failure=replace(
                        raised("TrainingError", "step 3 failed", at=1),
                        traceback=(
                            printed("RuntimeError", CLOSED, IN_BACKWARD)
                            + "\n\nThe above exception was the direct cause of the following exception:\n\n"
                            + printed("TrainingError", "step 3 failed", own())
                        ),
                    ),
                ),
                killed(SIGKILL, 1, at=2),
            ],
            (DIED, (1,), (0,)),
        ),
    ],
)
def test_the_likely_cause(ends, expected):
    for order in (ends, ends[::-1]):  # who is asked first must not matter
        assert seen(judge(order)) == expected


def test_a_rank_that_failed_in_a_way_of_its_own_was_not_stopped():
    ends = [
        failed(0, "ValueError", "first", at=1),
        failed(1, "KeyError", "'a'", at=2),
        end(2, code=4, at=6),
        stopped(3),
    ]
    lines = block(judge(ends), exit_status=1, run_dir="runs/x")
    assert "rank 1 failed too: KeyError: 'a'" in lines
    assert "rank 2 failed too, with exit code 4" in lines
    assert "rank 3: stopped because rank 0 failed" in lines


def test_who_had_stopped_to_be_resumed_was_not_stopped_by_a_crash():
    ends = [end(0, code=75), failed(1), stopped(2), end(3, code=75)]
    lines = block(judge(ends), exit_status=1, run_dir="runs/x")
    assert "ranks 0, 3 had stopped to be resumed (status 75)" in lines
    assert "rank 2: stopped because rank 1 failed" in lines


@pytest.mark.parametrize(
    ("ended", "unfinished"),
    [
        (end(code=75), True),
        (end(code=75, left=True), True),
        (killed(SIGABRT, left=True), True),
        (killed(SIGSEGV, left=True), True),
        (killed(SIGKILL, left=True, stopped="x"), True),  # in its teardown when the time was over
        (killed(SIGTERM, left=True, stopped="x"), True),
        (killed(SIGKILL, left=True), False),
        (killed(SIGKILL, stopped="x"), False),
        (killed(SIGABRT, finished=True), False),
        (end(code=None, left=True), False),
        (end(code=1, left=True), False),
        (end(code=0), False),
        (end(code=143, stopped="x"), False),
    ],
)
def test_who_stopped_to_be_resumed(ended, unfinished):
    assert ended.unfinished == unfinished
    assert ended.failed == (not unfinished and not ended.succeeded)


def in_stop(rank, kind, message, at=7):
    return end(
        rank,
        stopped="SIGTERM to the launcher",
        stopped_ns=6 * S,
        failure=raised(kind, message, at=at),
    )


@pytest.mark.parametrize(
    ("ends", "lines"),
    [
        (
            [
                in_stop(0, "KeyboardInterrupt", ""),
                in_stop(1, "SystemExit", "143"),
                stopped(2),
                end(3, code=75),
            ],
            [],
        ),
        ([in_stop(0, "RuntimeError", CLOSED), in_stop(1, "RuntimeError", TIMED_OUT)], []),
        ([failed(0)], []),
        (
            [
                in_stop(0, "RuntimeError", CLOSED),
                in_stop(1, "OSError", "No space left on device\nmore"),
            ],
            ["while it stopped, rank 1 raised OSError: No space left on device"],
        ),
        (
            [in_stop(2, "ValueError", "", at=9), in_stop(1, "KeyError", "'a'", at=8)],
            [
                "while it stopped, rank 1 raised KeyError: 'a'",
                "while it stopped, rank 2 raised ValueError",
            ],
        ),
    ],
)
def test_what_went_wrong_while_the_run_stopped(ends, lines):
    assert broken_in_stop(ends) == lines


@pytest.mark.parametrize(
    ("ended", "seconds"),
    [
        (killed(SIGKILL, stopped="x", stopped_ns=2 * S, at=5), 3),
        (killed(SIGTERM, stopped="x", stopped_ns=2 * S, at=5), -1),
        (killed(SIGKILL, at=5), -1),
        (killed(SIGKILL, stopped="x", stopped_ns=2 * S, at=5, left=True), -1),
    ],
)
def test_how_long_a_rank_had_before_it_was_killed(ended, seconds):
    assert ended.killed_after_s == seconds


@pytest.mark.parametrize(
    ("owner", "fix"),
    [
        ("Net", "session.recompute(model)"),
        ("DistributedDataParallel", "model.module.gradient_checkpointing_enable()"),
    ],
)
def test_a_method_of_hugging_face_on_a_module_that_lacks_it(owner, fix):
    failure = raised(
        "AttributeError", f"'{owner}' object has no attribute 'gradient_checkpointing_enable'"
    )
    finding = judge([end(0, failure=failure), end(1, failure=failure)]).finding
    assert (finding.name, finding.evidence[0][:22]) == (
        "method-does-not-exist",
        "/home/me/train.py:12 i",
    )
    assert finding.fix.startswith(fix)


def test_the_kernels_kill_of_a_loaders_worker_is_told():
    said = "DataLoader worker (pid 25027) is killed by signal: Killed. "
    finding = judge([end(0, oom_kills=1, failure=raised("RuntimeError", said))]).finding
    assert finding.name == "rank-died-oom-killer"
    assert any("the kernel counted 1 kill(s)" in line for line in finding.evidence)
    assert judge([failed(0, "RuntimeError", said)]).finding.name == USER


@pytest.mark.parametrize("gap_ns", [1, S // 1000, S])
def test_ten_ranks_that_fail_at_once_leave_no_doubt(gap_ns):
    for culprit in range(10):
        ends = [victim(rank, at=5 + rank * gap_ns / S) for rank in range(10)]
        ends[culprit] = failed(culprit, at=6 + 10 * gap_ns / S)
        verdict = judge(ends)
        assert verdict.causes == (culprit,)
        assert verdict.victims == tuple(rank for rank in range(10) if rank != culprit)
        assert verdict.end is ends[culprit]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([fine(0)], ("agent-died", (), ())),
        ([], ("agent-died", (), ())),
        ([victim(0), stopped(1)], ("agent-died", (), (0, 1))),
        ([failed(0, "RuntimeError", TIMED_OUT)], ("agent-died", (), (0,))),
        ([killed(SIGABRT, 0)], ("agent-died", (), (0,))),
        ([failed(0), victim(1)], (ONE, (0,), (1,))),
    ],
)
def test_a_lost_node_is_the_cause_unless_a_rank_has_a_better_one(ends, expected):
    verdict = judge(ends, lost=["node 1", "node 3"])
    assert seen(verdict) == expected
    assert verdict.lost == ("node 1", "node 3")
    if not verdict.causes:
        assert "node 1, node 3" in verdict.finding.what


def test_a_crash_in_the_interpreters_teardown_is_no_failure():
    for signum in (SIGABRT, SIGSEGV):
        assert end(0, code=-signum, finished=True).succeeded
        assert not end(0, code=-signum).succeeded
        verdict = judge([end(0, code=-signum, finished=True, at=1), failed(1, at=2)])
        assert seen(verdict) == (ONE, (1,), ())


@pytest.mark.parametrize("code", [1, 3, -SIGKILL, -SIGTERM, None])
def test_other_endings_after_the_scripts_end_are_failures(code):
    assert not end(0, code=code, finished=True).succeeded


def test_order_across_nodes_is_that_of_the_heads_clock():
    ahead = failed(1, "KeyError", "'late'", at=9)  # its clock is 8 s ahead
    head = failed(0, "ValueError", "early", at=2)
    assert judge([head, ahead]).causes == (0,)
    assert judge([head, ahead.shifted(8 * S)]).causes == (1,)


def test_shifting_moves_all_times_and_nothing_else():
    record = end(1, failure=raised(at=9), at=10, stopped="x", stopped_ns=8 * S)
    moved = record.shifted(3 * S)
    assert moved.stopped_ns == 5 * S
    assert end(1).shifted(3 * S).stopped_ns == 0, "0 says that it was not stopped"
    assert (moved.failure.time_ns, moved.time_ns, moved.first_ns) == (6 * S, 7 * S, 6 * S)
    assert moved.shifted(-3 * S) == record
    assert end(1, code=-9, at=10).shifted(-S).first_ns == 11 * S


def test_a_record_survives_the_way_through_the_store():
    record = RankExit(
        rank=3,
        host="node-b",
        pid=7,
        code=-11,
        time_ns=123,
        finished=True,
        left=True,
        stopped="x",
        stopped_ns=122,
        steps=4,
        failure=raised("ValueError", "größe\nzwei", frames=IN_COLLECTIVE),
        log="logs/rank-003.out",
        log_tail=("one", "two"),
        stack=("a:1 in b",),
        oom_kills=2,
        position=Position(rank=3, frames=IN_COLLECTIVE, call="all_reduce", seq=4),
        shm="98 % of 64 MB",
        log_shows="OSError: gone",
        threads=("thread loader raised OSError: gone",),
        changes=("MASTER_PORT=1; the launcher set 2",),
        standing=Position(rank=3, frames=IN_COLLECTIVE, threads=("thread x raised",)),
    )
    usual = RankExit(rank=0)
    for made in (record, replace(record, failure=None), usual):
        assert read_as(RankExit, json.loads(json.dumps(asdict(made)))) == made
    assert {name for name in vars(record) if getattr(record, name) == getattr(usual, name)} == set()


# --------------------------------------------------------------------------------------------- explanations


def told(*ends, lost=()):
    return judge(ends, lost=lost).finding


def test_an_exception_is_told_with_its_place():
    finding = told(fine(0), end(1, failure=raised("ValueError", "shape [3] is wrong"), steps=1))
    assert finding.what == "rank 1 raised ValueError: shape [3] is wrong"
    assert finding.where == "rank 1 on node-a (pid 101), after 1 step"
    assert finding.evidence == ("/home/me/train.py:12 in main: value = compute()",)
    assert finding.fix == "traceback: less logs/rank-001.out"


def test_nccls_last_error_is_quoted():
    said = "RuntimeError: socketPollConnect: connect to 10.0.0.2<41234> returned error"
    assert said in told(victim(0, message=NCCL_REMOTE)).what


def test_the_users_innermost_frame_is_shown_and_not_the_librarys():
    frames = (*own(1, "main"), *own(7, "step"), *IN_COLLECTIVE[1:])
    finding = told(failed(0, "TypeError", "unhashable", frames=frames))
    assert finding.evidence[0].startswith("/home/me/train.py:7 in step")


@pytest.mark.parametrize(
    ("message", "what", "more"),
    [
        ("", "rank 0 raised ValueError", ()),
        ("\n", "rank 0 raised ValueError", ()),
        ("one\n  two\n\nthree\nfour", "rank 0 raised ValueError: one", ("two",)),
        ("one\ntwo\nthree\nfour", "rank 0 raised ValueError: one", ("two", "three")),
    ],
)
def test_long_messages_are_shortened(message, what, more):
    finding = told(failed(0, "ValueError", message, frames=()))
    assert (finding.what, finding.evidence) == (what, more)


def test_ranks_that_failed_in_the_same_way_are_folded():
    ends = [end(rank, failure=raised(at=9 - rank), steps=rank) for rank in (0, 2, 3, 4, 5)]
    finding = told(*ends, fine(1))
    assert finding.what == "ranks 0, 2-5 raised ValueError: no"
    assert finding.where == "rank 5 on node-a (pid 105), after 5 steps"


def test_copies_of_a_script_fail_in_the_same_way():
    both = [raised(frames=own(file=f"{folder}/train.py")) for folder in ("/home/me", "/scratch")]
    places = [Position(0, frames=failure.frames, content="abc") for failure in both]
    ends = [end(rank, failure=both[rank], position=places[rank]) for rank in range(2)]
    assert seen(judge(ends)) == (USER, (0, 1), ())


@pytest.mark.parametrize(
    ("num_ranks", "where"),
    [(1, "rank 0 on"), (2, "both ranks, the first was rank 1 on"), (3, "all ranks, the")],
)
def test_what_all_ranks_raised_is_not_said_to_be_at_one_of_them(num_ranks, where):
    ends = [end(rank, failure=raised(at=9 - rank)) for rank in range(num_ranks)]
    assert told(*ends).where.startswith(where)
    assert told(*ends, fine(9)).where.startswith("rank ")


@pytest.mark.parametrize(
    ("ended", "why", "fix"),
    [
        (killed(SIGXCPU, 1), "ulimit -t", "ulimit -t unlimited"),
        (killed(SIGXFSZ, 1), "ulimit -f", "ulimit -f unlimited"),
        (killed(SIGUSR1, 1), "Slurm's --signal", "signal.signal(signal.SIGUSR1, handler)"),
        (killed(SIGALRM, 1), "signal.alarm", "less logs/rank-001.out"),
        (
            killed(
                SIGABRT, 1, log_tail=("loop.cc:212] nfds != -1. -1 vs -1",), stack=("a.py:1 in b",)
            ),
            "itself closed what torch had opened",
            "os.closerange",
        ),
        (killed(SIGABRT, 1, log_tail=("free(): invalid pointer",)), "", "its last lines"),
        (killed(SIGABRT, 1, log=""), "", ""),
    ],
)
def test_a_signal_of_a_limit_or_without_a_handler_is_told_with_its_reason(ended, why, fix):
    finding = told(fine(0), ended)
    assert why in finding.why
    assert bool(finding.why) == bool(why)
    assert fix in finding.fix
    assert bool(finding.fix) == bool(fix)
    assert "who did" not in finding.what
    assert finding.evidence == (*ended.log_tail, *ended.stack)


@pytest.mark.parametrize(("message", "shown"), [("2", "2"), ("no data", "no data"), ("", "")])
def test_sys_exit_is_told_as_such(message, shown):
    finding = told(fine(0), failed(1, "SystemExit", message))
    assert finding.what == (f"rank 1 ended itself with sys.exit({shown})")
    assert finding.fix.startswith("what it printed before")


def test_an_exit_without_exception_shows_the_last_lines():
    finding = told(fine(0), end(1, code=3, log_tail=("a", "b", "c", "d")))
    assert finding.what == "rank 1 ended with exit code 3 and left no exception"
    assert finding.evidence == ("b", "c", "d")
    assert "os._exit" in finding.why


def test_the_exception_inside_a_loaders_worker_is_told():
    finding = told(fine(0), failed(1, "ValueError", WORKER, frames=IN_COLLECTIVE))
    assert finding.name == ONE
    assert finding.what == "rank 1: a DataLoader worker raised ValueError: bad sample 3"
    assert finding.evidence == (
        '/home/me/data.py:19 in __getitem__: raise ValueError(f"bad sample {i}")',
    )


def test_a_loaders_worker_may_raise_a_class_of_the_users_own():
    text = WORKER.replace("Caught ValueError", "Caught BadSample").replace(
        "ValueError: bad", "mydata.BadSample: bad"
    )
    finding = told(failed(0, "BadSample", text))
    assert finding.what == "rank 0: a DataLoader worker raised BadSample: bad sample 3"


@pytest.mark.parametrize(
    ("ended", "name", "what", "evidence"),
    [
        (
            killed(SIGKILL, 1, oom_kills=2),
            "rank-died-oom-killer",
            "rank 1 was killed (SIGKILL) because memory ran out on node-a",
            "the kernel counted 2 kill(s)",
        ),
        (
            killed(SIGKILL, 1),
            DIED,
            "rank 1 was killed by SIGKILL; who sent it is not visible",
            "count no kill for lack of memory",
        ),
        (
            killed(SIGBUS, 1, shm="98% of 64 MB", stack=("data.py:3 in load",)),
            "dataloader-shm-too-small",
            "SIGBUS",
            "/dev/shm is 98% of 64 MB",
        ),
        (killed(SIGBUS, 1), DIED, "SIGBUS", "/dev/shm is not full now"),
        (
            killed(
                SIGSEGV, 1, stack=("native.py:3 in call", "train.py:9 in main"), log_tail=("noise",)
            ),
            "rank-segfault",
            "rank 1 crashed in native code (SIGSEGV)",
            "native.py:3 in call",
        ),
        (
            killed(SIGSEGV, 1, log_tail=("the last line",)),
            "rank-segfault",
            "SIGSEGV",
            "the last line",
        ),
        (
            killed(SIGTERM, 1, log_tail=("epoch 3",)),
            DIED,
            "rank 1 was ended by SIGTERM, which this launcher did not send",
            "epoch 3",
        ),
        (killed(SIGFPE, 1, log_tail=("div",)), DIED, "rank 1 was ended by SIGFPE", "div"),
        (
            killed(SIGABRT, 1, log_tail=("free(): invalid pointer",)),
            DIED,
            "rank 1 was ended by SIGABRT",
            "free(): invalid pointer",
        ),
        (
            killed(SIGABRT, 1, log_tail=MISMATCH, stack=("train.py:9 in step",)),
            "collective-mismatch",
            "rank 1 aborted in a collective whose sizes differ between ranks",
            "8 vs 4",
        ),
        (killed(SIGRTMIN + 3, 1), DIED, f"signal {SIGRTMIN + 3}", ""),
    ],
)
def test_signals_are_told_with_their_evidence(ended, name, what, evidence):
    finding = told(fine(0), ended)
    assert finding.name == name
    assert what in finding.what
    assert evidence in "\n".join(finding.evidence)
    assert finding.fix
    assert finding.where == "rank 1 on node-a (pid 101), before the first step"


def test_only_victims_is_said_without_naming_a_culprit():
    verdict = judge([victim(0, at=2), victim(1, at=1)])
    assert verdict.finding.what.startswith(
        f"only ranks that lost another one are visible; rank 1 was the first to notice: RuntimeError: {CLOSED[:40]}"
    )
    assert not verdict.causes


NOTICED = Finding(
    "rank-stuck-in-code",
    "rank 0: urlopen, data.py:40, for 1800 s; rank 1 waits",
    evidence=("rank 0",),
)


def test_torchs_end_of_a_wait_is_blamed_on_what_a_notice_had_named():
    ends = [stopped(0), failed(1, "RuntimeError", TIMED_OUT)]
    verdict = judge(ends, noticed=NOTICED)
    assert verdict.finding.name == "rank-stuck-in-code"
    assert verdict.finding.evidence[-1].startswith("torch ended the wait of rank 1: RuntimeError:")
    assert "init_process_group(timeout=...)" in verdict.finding.fix


@pytest.mark.parametrize(
    "failure", [raised("ValueError", "bad label"), raised("RuntimeError", CLOSED)]
)
def test_what_else_ended_a_run_is_not_blamed_on_a_notice(failure):
    ends = [stopped(0), end(1, failure=failure)]
    assert judge(ends, noticed=NOTICED) == judge(ends)


# ----------------------------------------------------------------------------------------------- the block

MANY = killed(
    SIGABRT,
    1,
    log_tail=tuple(f"line {number} {'x' * 400}" for number in range(12)),
    stack=tuple(f"file.py:{number} in f" for number in range(50)),
    steps=7,
)
ENDINGS = [
    [failed(0, "ValueError", "\n".join("abcdefgh"))],
    [failed(0, "ValueError", WORKER), victim(1)],
    [end(0, code=3, log_tail=("1", "2", "3", "4")), *(victim(rank) for rank in range(1, 300))],
    [end(0, code=-9, oom_kills=1)],
    [killed(SIGBUS, 0, shm="1", stack=("a", "b", "c", "d", "e"))],
    [MANY],
    [victim(0), victim(1)],
    [],
]


@pytest.mark.parametrize("ends", ENDINGS)
@pytest.mark.parametrize("lost", [(), ("node 1", "node 2")])
@pytest.mark.parametrize("resume_lines", [(), ("resume: " + "word " * 100, "auto-resume: x")])
def test_a_block_fits_on_a_screen_and_ends_with_the_exit_status(ends, lost, resume_lines):
    lines = block(
        judge(ends, lost=lost),
        exit_status=1,
        run_dir="runs/x",
        attempts=3,
        resume_lines=resume_lines,
    )
    assert len(lines) <= 15
    assert tuple(lines[-1 - len(resume_lines) : -1]) == resume_lines, (
        "what is to be pasted stays whole"
    )
    assert max(map(len, lines[: -1 - len(resume_lines)])) <= 300
    assert not any("\n" in line for line in lines)
    assert lines[-1] == "exit status 1 after 3 attempts · run folder runs/x"


def test_a_block_as_it_is_printed():
    ends = [
        victim(0),
        end(1, failure=raised("KeyError", "'labels'"), steps=12),
        *(stopped(rank) for rank in range(2, 8)),
    ]
    assert block(judge(ends), exit_status=1, run_dir="runs/20261120-digits") == [
        "cause: rank 1 raised KeyError: 'labels'   [RUN002 script-error-on-one-rank]",
        "  where: rank 1 on node-a (pid 101), after 12 steps",
        "  /home/me/train.py:12 in main: value = compute()",
        "  traceback: less logs/rank-001.out",
        "  more: paceline explain RUN002",
        "ranks 0, 2-7: stopped because rank 1 failed",
        "exit status 1 · run folder runs/20261120-digits",
    ]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (silence.CLOSED, ["has gone: it was killed, or it crashed", "closed its connection"]),
        (
            silence.REFUSED,
            ["has gone: it was killed, or it crashed", "nothing listens on the port"],
        ),
        (silence.DOWN, ["node 1 (host-b) is down", "Slurm says that the node is DOWN"]),
        (
            silence.SILENT,
            ["has gone silent", "for 91 s", "the link between the two is what is gone"],
        ),
    ],
)
def test_a_lost_node_is_named_with_how_that_is_known(reason, words):
    name = silence.named(1, "host-b")
    found = judge(
        [victim(0)], lost=[name], losses={name: silence.Loss("host-b", reason, 91.2)}
    ).finding
    assert found.name == "agent-died"
    assert all(word in found.render() for word in words)


def test_a_block_about_a_lost_node():
    lines = block(judge([victim(0), victim(1)], lost=["node 1"]), exit_status=1, run_dir="r")
    assert lines[0].startswith("the launcher on node 1 has gone silent")
    assert lines[0].endswith("[RUN013 agent-died]")
    assert lines[-2:] == [
        "ranks 0-1: stopped because the node was lost",
        "exit status 1 · run folder r",
    ]


def test_a_block_about_a_cause_says_who_was_lost_since():
    lines = block(judge([failed(0), victim(1)], lost=["node 1"]), exit_status=1, run_dir="r")
    assert lines[0].startswith("cause: rank 0 raised")
    assert lines[-3:] == [
        "rank 1: stopped because rank 0 failed",
        "node 1: not heard of since",
        "exit status 1 · run folder r",
    ]


def test_a_block_about_victims_only_claims_no_cause():
    lines = block(judge([victim(0), victim(1)]), exit_status=1, run_dir="r")
    assert not any("cause" in line.split("typically")[0] for line in lines)
    assert lines[-2] == "ranks 0-1: stopped by a peer that is not visible"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 0], "0-1"),
        ([0, 2, 3, 4, 7], "0, 2-4, 7"),
        ([5, 5, 4], "4-5"),
        (range(1000), "0-999"),
        ([0, 2, 4], "0, 2, 4"),
    ],
)
def test_numbers_are_folded(numbers, text):
    assert fold(numbers) == text


@pytest.mark.parametrize(
    "said", ["(pid 4411) is killed by signal: Killed. ", "(pid(s) 4411) exited unexpectedly"]
)
def test_a_lost_loader_worker_is_not_illustrated_by_the_line_that_was_running(said):
    frames = (Frame("train.py", 40, "main", "optimizer.step()", user=True),)
    end = RankExit(
        rank=1, code=1, failure=raised("RuntimeError", f"DataLoader worker {said}", frames=frames)
    )
    finding = judge([RankExit(rank=0), end]).finding
    assert "optimizer.step()" not in "\n".join(finding.evidence)
    assert "the rank noticed at train.py:40, whose line did not cause it" in finding.evidence[0]
    assert "no kill for lack of memory" in finding.evidence[1]


def test_exceptions_in_threads_are_in_the_block_and_accuse_nobody():
    ends = [
        RankExit(rank=0, threads=("thread loader raised OSError: gone (train.py:7)",)),
        RankExit(rank=1, code=3),
    ]
    verdict = replace(judge(ends), threads=other_troubles(ends))
    assert verdict.causes == (1,)
    lines = block(verdict, exit_status=1, run_dir="runs/x")
    assert "in rank 0, thread loader raised OSError: gone (train.py:7)" in lines


# ------------------------------------------------------------------------- the same names as `paceline explain` gives

UNUSED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that"
    " your module has parameters that were not used in producing loss. "
    + "You can enable it. "
    * 20
)


@pytest.mark.parametrize(
    ("kind", "message", "name", "what", "fix"),
    [
        (
            "RuntimeError",
            UNUSED,
            "unused-parameters",
            "took no part",
            "find_unused_parameters=True",
        ),
        ("OSError", "[Errno 28] No space left on device", "disk-full", "no space left", "df -h"),
        ("OSError", "[Errno 27] File too large", "disk-full", "(ulimit -f)", "ulimit -f unlimited"),
        ("MemoryError", "", "host-oom", "the host has not the memory", "free -h"),
        ("ValueError", "loss is nan", USER, "became NaN or Inf", "set_detect_anomaly(True)"),
        ("BdbQuit", "", USER, "got no input", "take breakpoint() out"),
        ("AssertionError", "Torch not compiled with CUDA enabled", None, "CPUs only", "install"),
    ],
)
def test_what_a_signature_knows_is_named_with_its_fix_at_the_end_of_a_run(
    kind, message, name, what, fix
):
    finding = told(failed(0, kind, message), failed(1, kind, message))
    assert finding.name == (name or "gpus-fewer-than-processes")
    assert finding.what.startswith("ranks 0-1: ")
    assert what in finding.what
    assert fix in finding.fix
    assert finding.evidence[0].startswith(f"ranks 0-1 raised {kind}")
    assert len(finding.evidence[0]) <= 160, "a long text of a library does not fill the screen"
    assert "/home/me/train.py:12 in main: value = compute()" in finding.evidence


def test_a_rank_whose_own_gradients_were_finite_is_not_blamed_for_those_of_another():
    """Rank 0 may be the first to raise; without a rank that blames itself all are named."""

    def not_finite(rank, what, at):
        found = non_finite(rank, 5, what)
        return end(rank, failure=replace(raised("RunError", found.what, at=at), finding=found))

    innocent = [not_finite(0, "", 5), not_finite(2, "", 5.1)]
    verdict = judge([*innocent, not_finite(1, "loss", 6)])
    assert (verdict.causes, verdict.victims) == ((1,), (0, 2))
    assert verdict.finding.what == "rank 1's loss is not finite in step 5"
    together = judge(innocent)
    assert (together.causes, together.finding.where) == ((0, 2), "ranks 0, 2")
    assert "that ranks 0, 2 are about to apply are not finite" in together.finding.what
    assert "after backward (clipping" in together.finding.fix


def test_the_last_lines_of_a_rank_without_an_exception_are_known_too():
    for code in (1, -SIGFPE):
        finding = told(
            fine(0),
            end(1, code=code, log_tail=("epoch 1", "OSError: [Errno 28] No space left on device")),
        )
        assert (finding.name, "df -h" in finding.fix) == ("disk-full", True)


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (f"[Errno 98] {PORT_TAKEN}", "port-in-use"),
        ("[Errno 98] Address already in use", "port-in-use"),
        ("tensorboard: [Errno 98] Address already in use", USER),
        (
            "unable to open shared memory object </torch_412_28> in read-write mode",
            "dataloader-shm-too-small",
        ),
        (
            "unable to write to file </torch_1869_15>: No space left on device (28)",
            "dataloader-shm-too-small",
        ),
        (
            "unable to open shared memory object </torch_412_28>: Too many open files (24)",
            "too-many-open-files",
        ),
        ("received 0 items of ancdata", "too-many-open-files"),
        ("pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected", USER),
        ("DDP expects same model across all ranks, but Rank 1 has 5 params", "ddp-model-mismatch"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "cuda-oom"),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuda-oom"),
        ("the shared memory of the plant", USER),
        ("[enforce fail at inline_container.cc:672] . unexpected pos 128 vs 22", "disk-full"),
        ("basic_ios::clear: iostream error", "disk-full"),
        ("[Errno 27] File too large: 'weights.pt'", "disk-full"),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes", "host-oom"),
        ("Torch not compiled with CUDA enabled", "gpus-fewer-than-processes"),
        (UNUSED, "unused-parameters"),
    ],
)
def test_a_text_of_a_library_has_one_name(message, name):
    ends = [failed(rank, "RuntimeError", message) for rank in (0, 1)]
    assert judge(ends).finding.name == name
    assert explain_judge([f"RuntimeError: {message}"]).findings[0].name == name


HOOK = replace(fine(1), failure=raised("ValueError", "the cause"))  # it calls os._exit(0)


def test_an_exception_whose_hook_ends_the_process_well_is_the_cause_of_a_hang():
    hang = Finding("rank-ended-early", "rank 1 has ended, and rank 0 still waits")
    assert (
        judge([stopped(0), HOOK], hang=hang).finding.what == "rank 1 raised ValueError: the cause"
    )
    assert judge([victim(0), HOOK]).causes == (1,)
    assert other_troubles([HOOK])[0].startswith("in rank 1, ValueError: the cause ended the script")
    lost = replace(HOOK, failure=raised("RuntimeError", CLOSED))
    assert judge([stopped(0), lost], hang=hang).finding is hang
    assert not other_troubles([fine(0)])


def test_of_a_group_the_parts_are_shown_and_weighed():
    group = raised("ExceptionGroup", "many (2 sub-exceptions)")
    lost, own = f"RuntimeError: {CLOSED}", "KeyError: 'x' (/home/me/train.py:3)"
    only_lost = end(1, failure=replace(group, parts=(lost,)))
    mixed = end(1, failure=replace(group, parts=(lost, own), notes=("at sample 7",)))
    assert (weigh(only_lost), weigh(mixed)) == (VICTIM, CAUSE)
    assert {"at sample 7", own} <= set(judge([mixed]).finding.evidence)


SPAWN = "An attempt has been made to start a new process before the"


@pytest.mark.parametrize(
    ("shown", "message", "what", "evidence"),
    [
        (f"RuntimeError: {SPAWN}", "process 1 terminated with exit code 1", "no main guard", ""),
        ("OSError: x", "process 1 terminated with exit code 1", "terminated", "shows OSError: x"),
        ("OSError: x", "DataLoader worker (pid(s) 7) exited unexpectedly", "", "shows OSError: x"),
        ("OSError: x", "the rank's own", "the rank's own", "main"),
    ],
)
def test_why_a_process_that_a_rank_has_started_has_ended(shown, message, what, evidence):
    failure = raised("RuntimeError", message, frames=own())
    finding = judge([end(1, failure=failure, log_shows=shown)]).finding
    assert what in finding.what
    assert any(evidence in line for line in finding.evidence)
