"""The likely cause first, consequences after it, and nothing invented."""

from __future__ import annotations

import pytest

from paceline.diagnose.explain import judge
from paceline.diagnose.explain.scan import _DIGITS
from paceline.signatures.libraries import signatures
from paceline.signatures.signature import fill
from paceline.signatures.tier import Tier
from unit.diagnose.explain.nccl_texts import last, watchdog

VICTIM = "[rank1]: RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:41014"
SUMMARY = """
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 311)
  error_file: <N/A>
"""
CAUSE = """
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 50, in step
[rank0]:     raise ValueError("no labels")
[rank0]: ValueError: no labels
"""


def names(text):
    return [finding.name for finding in judge([text]).findings]


def test_victims_never_come_before_a_cause():
    assert names(VICTIM + CAUSE + SUMMARY)[0] == "script-error-on-one-rank"
    assert names(CAUSE + VICTIM + SUMMARY)[0] == "script-error-on-one-rank"


def test_one_rank_in_sight_is_a_plain_exception():
    finding = judge([CAUSE + SUMMARY]).findings[0]
    assert finding.name == "user-exception"
    assert finding.what.startswith("ValueError: no labels")
    assert finding.where == "/home/me/train.py:50"


def test_every_rank_with_the_same_error_is_no_error_of_one():
    assert names(CAUSE + CAUSE.replace("rank0", "rank1") + VICTIM)[0] == "user-exception"


def test_only_victims_are_called_that():
    assert names(VICTIM + SUMMARY)[0] == "peer-rank-died"


def test_consequences_are_not_errors():
    findings = judge([CAUSE + VICTIM + SUMMARY]).findings
    assert [finding.severity for finding in findings] == ["error", "hint", "hint"]


def test_consequences_are_folded_with_their_number():
    lines = (
        judge([CAUSE + "\n".join(f"[rank{rank}]: {VICTIM[9:]}" for rank in range(1, 8))])
        .render()
        .splitlines()
    )
    folded = lines[lines.index("What followed from it:") + 1]
    assert folded.startswith("  peer-rank-died (7 lines): ")


def test_a_summary_shows_the_last_lines():
    assert "error_file: <N/A>" in judge(["step 1\n" + SUMMARY]).render()


def test_an_unknown_error_shows_where_it_began():
    answer = judge(["begin\nfatal: the cable is loose\nend"])
    assert answer.findings[0].name == "cause-unknown"
    assert "fatal: the cable is loose" in answer.findings[0].evidence
    assert "begin" in answer.render()


def test_the_json_has_the_findings_and_nothing_else():
    plain = judge([VICTIM]).to_json()
    assert list(plain) == ["findings"]
    assert {"code", "name", "severity", "what", "where", "evidence", "fix"} <= plain["findings"][
        0
    ].keys()


def test_the_rank_that_is_behind_is_named():
    text = "\n".join(
        [last(0, 90, 80), last(1, 90, 80), last(2, 81, 80), last(3, 90, 80), watchdog(0, 81)]
    )
    finding = judge([text]).findings[0]
    assert finding.name == "collective-timeout"
    assert finding.where == "rank 2"


def test_equal_ranks_are_not_accused():
    text = "\n".join([last(rank, 90, 80) for rank in range(4)] + [watchdog(0, 81)])
    assert "behind" not in judge([text]).findings[0].what


def test_what_ended_the_job_is_the_cause_of_what_follows():
    stop = "slurmstepd: error: *** JOB 9 ON n1 CANCELLED AT 2026-01-01T10:00:00 DUE TO TIME LIMIT ***\n"
    assert names(stop + CAUSE)[0] == "slurm-time-limit"
    assert names(CAUSE + stop)[0] == "user-exception"


def test_a_warning_that_was_overcome_is_not_told():
    warning = "[W socket.cpp:601] [c10d] The IPv6 network addresses of (n1, 29500) cannot be retrieved (gai error: -2).\n"
    assert names(warning + "step 1 loss 2.0\nstep 2 loss 1.9") == ["no-error-in-log"]


def test_an_endpoint_that_was_given_is_not_missed():
    text = (
        "torchrun --rdzv-backend=c10d --rdzv-endpoint=n1:29500 train.py\n"
        "W0301 run.py:792] master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.\n"
    )
    assert names(text) == ["no-error-in-log"]


def test_values_of_the_text_are_in_the_fix():
    text = "The server socket has failed to listen on any local network address. port: 23456, name: EADDRINUSE"
    assert "23456" in judge([text]).findings[0].fix


def test_interleaved_tracebacks_of_two_ranks_are_told_apart():
    text = """
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "/home/me/a.py", line 1, in f
[rank1]:   File "/home/me/b.py", line 2, in g
[rank0]: ValueError: one
[rank1]: TypeError: two
"""
    found = judge([text]).findings[0]
    assert (found.what.split(" (")[0], found.where) == ("ValueError: one", "/home/me/a.py:1")


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", False),
        ("/usr/lib/python3.10/multiprocessing/process.py", False),
        ("C:\\Python310\\lib\\threading.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("/opt/conda/bin/torchrun", False),
        ("/opt/pytorch/pytorch/torch/distributed/run.py", False),
        ("train.py", True),
        ("/home/me/library/models/net.py", True),
        ("/workspace/torch_experiments/run.py", True),
        ("src/data/loader.py", True),
        ("D:\\work\\train.py", True),
    ],
)
def test_the_users_own_frames_are_told_from_libraries(file, own):
    finding = judge(
        [f'Traceback (most recent call last):\n  File "{file}", line 7, in f\nValueError: x']
    ).findings[0]
    assert finding.where == (f"{file}:7" if own else "")


@pytest.mark.parametrize(
    "signature",
    signatures(),
    ids=lambda signature: f"{signature.name or 'note'}-{signature.anchor[0]}",
)
def test_a_signature_can_always_be_told(signature):
    assert all(len(_DIGITS.sub("", anchor)) >= 3 for anchor in signature.anchor)
    assert all(anchor == anchor.lower() for anchor in signature.anchor)
    if signature.name and signature.tier is not Tier.REMARK:
        assert fill((signature.what[-1],), {}) or "{" in signature.what[-1]
        assert signature.what and signature.fix


def test_a_file_that_was_left_over_is_told_from_a_missing_rank():
    text = "Distributed init: rank 0/2 - file:///tmp/dist_init\n"
    text += "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, "
    assert (
        names(
            text
            + "for key: store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:02:00)"
        )[0]
        == "stale-init-file"
    )
    assert (
        names(
            text
            + "for key: store_based_barrier_key:1 (world_size=2, worker_count=1, timeout=0:02:00)"
        )[0]
        == "rendezvous-timeout"
    )


def test_ranks_that_say_how_many_batches_they_have_explain_a_timeout():
    text = "rank 0: num_batches = 125\nrank 1: num_batches = 124\n" + watchdog(0, 500)
    assert names(text)[0] == "uneven-inputs"
    assert names(text.replace("124", "125"))[0] == "collective-timeout"


def test_a_folder_that_may_not_be_made_is_no_plain_exception():
    text = """
Traceback (most recent call last):
  File "/home/me/t.py", line 3, in main
    os.makedirs(out)
  File "/usr/lib/python3.10/os.py", line 225, in makedirs
    mkdir(name, mode)
PermissionError: [Errno 13] Permission denied: '/results'
"""
    finding = judge([text]).findings[0]
    assert (finding.name, finding.where) == ("folder-not-writable", "/home/me/t.py:3")


@pytest.mark.parametrize(
    ("other", "name"), [("8 9", "rank-dependent-graph"), ("4 5", "unused-parameters")]
)
def test_ranks_that_lack_other_gradients_run_other_parts(other, name):
    text = "[rank0]: Parameter indices which did not receive grad for rank 0: 4 5\n"
    assert (
        names(f"{text}[rank1]: Parameter indices which did not receive grad for rank 1: {other}")[0]
        == name
    )


def test_a_text_that_ends_in_a_traceback_says_so():
    text = 'Traceback (most recent call last):\n  File "/home/me/t.py", line 3, in main\n    model(x)\n'
    finding = judge([text]).findings[0]
    assert (finding.name, finding.where) == ("cause-unknown", "/home/me/t.py:3")


def test_a_text_that_ends_in_the_launchers_traceback_is_a_summary():
    text = 'Traceback (most recent call last):\n  File "/opt/conda/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
    assert names(text) == ["launcher-summary-only"]


def test_the_rank_of_the_launchers_table_is_told():
    table = SUMMARY.replace("  rank ", "  host      : n4\n  rank ")
    assert judge([table]).findings[0].where == "rank 0 on n4"


def test_an_exception_that_python_ignored_is_no_cause():
    text = """
Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>
Traceback (most recent call last):
  File "/opt/lib/python3.9/site-packages/torch/utils/data/dataloader.py", line 1510, in __del__
    self._shutdown_workers()
AssertionError: can only test a child process
"""
    assert names(text + "epoch 1 loss 2.0")[0] == "no-error-in-log"
    assert names(text + CAUSE)[0] == "user-exception"


def test_arguments_that_a_script_does_not_know_are_told():
    assert (
        names("usage: fit.py [-h] [--lr LR]\nfit.py: error: unrecognized arguments: --lrr 0.1")[0]
        == "option-unknown"
    )
    assert (
        names("fit.py: error: the following arguments are required: --data")[0] == "user-exception"
    )
