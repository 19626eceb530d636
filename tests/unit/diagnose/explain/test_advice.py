"""What is advised fits the text: nothing untrue below a cause, nothing that harms, nothing certain that is not."""

from __future__ import annotations

import pytest

from paceline.diagnose.explain import judge

RAISED = """
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 50, in step
[rank0]:     fail()
"""
SUMMARY = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 311)
"""
TIME_LIMIT = (
    "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***"
)
PREEMPTED = (
    "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***"
)
MISMATCH = "what(): op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size."
UNUSED = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
CHANNELS = "\n".join(
    f"n1:1:2 [0] NCCL INFO Channel 0{at}/0 : 0[0] -> 1[1] via P2P/IPC" for at in range(6)
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free. "
ALLOCATED = "Of the allocated memory 19.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved."
OURS = "Including non-PyTorch memory, this process has 20.00 GiB memory in use. "


def first(text):
    return judge([text]).findings[0]


@pytest.mark.parametrize("cause", [RAISED + "[rank0]: ValueError: no labels", UNUSED])
def test_below_a_cause_nobody_says_that_it_is_not_in_the_text(cause):
    answer = judge([cause + SUMMARY])
    assert "launcher-summary-only" in [finding.name for finding in answer.findings[1:]]
    assert "not in" not in answer.render()


def test_nor_below_a_finding_of_paceline_itself():
    report = "error NET002 port-held-by-other: something else answers on port 29500\n  where: head-1, port 29500\n  fix: --master-port 29501\n  more: paceline explain NET002\n"
    answer = judge([report + SUMMARY])
    assert [finding.name for finding in answer.findings] == [
        "port-held-by-other",
        "launcher-summary-only",
    ]
    assert "not in" not in answer.render()


def test_alone_the_summary_says_so():
    assert first(SUMMARY).what.endswith("the error itself is not in this text")


def test_debugging_that_crashes_ddp_on_gloo_is_not_advised():
    assert "DETAIL" not in first(MISMATCH).fix
    assert "paceline run" in first(MISMATCH).fix
    assert first(UNUSED).why == "TORCH_DISTRIBUTED_DEBUG=INFO prints their names"
    assert (
        "DETAIL with NCCL alone"
        in first("NCCL WARN Message truncated : received 8 bytes instead of 4").fix
    )


@pytest.mark.parametrize("text", [TIME_LIMIT, PREEMPTED])
def test_the_signal_before_the_end_is_one_that_torchrun_survives(text):
    assert "--signal=TERM@120" in first(text).fix
    assert "USR1" not in first(text).fix


def test_a_log_that_ends_in_channels_may_only_be_cut_off():
    answer = judge([CHANNELS])
    assert answer.findings[0].name == "p2p-hang"
    assert answer.findings[0].severity == "warning"
    assert "if it hangs here" in answer.findings[0].what
    assert answer.exit_status == 1


@pytest.mark.parametrize(
    ("text", "pid"),
    [
        (OOM + "Process 77 has 58.00 GiB memory in use. " + OURS + ALLOCATED, "77"),
        (
            OOM
            + "Process 7 has 3.00 GiB memory in use. Process 77 has 55.00 GiB memory in use. "
            + OURS,
            "77",
        ),
        (
            OOM
            + "Process 7 has 20.50 GiB memory in use. Process 77 has 58.00 GiB memory in use. "
            + ALLOCATED,
            "77",
        ),
    ],
    ids=["one", "the greatest of two", "in a container"],
)
def test_a_process_that_holds_much_of_the_gpu_is_named_first(text, pid):
    finding = first(text)
    assert finding.name == "cuda-oom"
    assert finding.what.startswith(f"another process holds much of it: process {pid} holds 5")
    assert finding.fix.startswith(f"nvidia-smi and ps -fp {pid}")
    assert "batch" not in finding.fix


@pytest.mark.parametrize(
    "text",
    [
        OOM + OURS + ALLOCATED,
        OOM + "Process 77 has 78.00 GiB memory in use. " + ALLOCATED,
        OOM + "Process 77 has 0.50 GiB memory in use. " + OURS + ALLOCATED,
        "CUDA out of memory. Process 77 has 5.0.1 GiB memory in use",
    ],
    ids=["alone", "its own number in a container", "little", "no total"],
)
def test_otherwise_a_smaller_need_is_advised(text):
    assert "a smaller batch" in first(text).fix


def test_a_message_goes_on_after_a_colon():
    error = "[rank0]: hydra.errors.InstantiationException: Error in call to target 'net.Net':\n[rank0]: TypeError(\"missing depth\")\n[rank0]: full_key: model"
    finding = first(RAISED + error)
    assert finding.what.startswith(
        "InstantiationException: Error in call to target 'net.Net': TypeError(\"missing depth\")"
    )
    assert "full_key" not in finding.what
    assert finding.evidence[-1].count("Error in call") == 1
    assert finding.evidence[-1].endswith('TypeError("missing depth")')


@pytest.mark.parametrize(
    "after",
    [
        "E1121 10:38:44.389000 30193 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0",
        "srun: error: n1: task 0: Exited with exit code 1",
        "During handling of the above exception, another exception occurred:",
    ],
)
def test_what_others_say_next_is_no_part_of_it(after):
    text = RAISED.replace("[rank0]: ", "") + "ValueError: these are wrong:\n" + after
    assert first(text).what == "ValueError: these are wrong:"


def test_what_goes_on_is_bounded():
    assert (
        len(judge([RAISED + "[rank0]: ValueError: bad:\n[rank0]: " + "x " * 5000]).findings[0].what)
        < 400
    )


@pytest.mark.parametrize(
    "text",
    [
        '^CTraceback (most recent call last):\n  File "/home/me/train.py", line 9, in <module>\n    step()\nKeyboardInterrupt',
        "W0101 10:00:00.1 7 torch/distributed/elastic/agent/server/api.py:719] Received 2 death signal, shutting down workers",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 30 got signal: 2",
        "failed (exitcode: -2) local_rank: 0 (pid: 7) of binary: python",
    ],
)
def test_ctrl_c_is_no_matter_of_the_scheduler(text):
    finding = first(text)
    assert finding.name == "rank-died-signal"
    assert "ended by Ctrl-C (or SIGINT)" in finding.what
    assert "sacct" not in finding.fix


def test_sigterm_still_is():
    finding = first(
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 30 got signal: 15"
    )
    assert finding.what == "the run was stopped from outside: signal 15"
    assert "sacct" in finding.fix
