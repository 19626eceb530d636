"""A text that stops at a launcher's last line: a hang at the start, unless ranks went on."""

from __future__ import annotations

import pytest

from paceline.diagnose.explain import judge

REGISTERED = """distributed_backend=nccl
All distributed processes registered. Starting with 2 processes
----------------------------------------------------------------
"""
TORCHRUN = """WARNING:torch.distributed.run:
*****************************************
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid
*****************************************
"""
DEEPSPEED = """[INFO] [comm.py:668:init_distributed] Initializing TorchBackend in DeepSpeed with backend nccl
[INFO] [comm.py:637:init_distributed] cdb=None
"""
NCCL = "".join(
    f"n1:50{rank}:540 [{rank}] NCCL INFO {words}\n"
    for rank in (0, 1)
    for words in ("Using network Socket", f"comm 0x5{rank} rank {rank} nranks 2 - Init START")
)
LIMIT = (
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-20T12:00:00 DUE TO TIME LIMIT ***\n"
)
BY_HAND = LIMIT.replace(" DUE TO TIME LIMIT", "")
SIGTERM = "W1129 torch/distributed/elastic/api.py:900] Sending process 42 closing signal SIGTERM\n"


@pytest.mark.parametrize("label", ["", "[default0]:", "3: "])
@pytest.mark.parametrize("end", [LIMIT, BY_HAND, SIGTERM])
@pytest.mark.parametrize("start", [REGISTERED, TORCHRUN, DEEPSPEED])
def test_a_run_stopped_before_its_first_word_hung_at_its_start(start, end, label):
    text = "".join(label + line for line in start.splitlines(keepends=True))
    first = judge([text + end]).findings[0]
    assert first.name == "nccl-hang-at-init"
    assert first.severity == ("warning" if start == TORCHRUN else "error")
    assert "more time" not in first.fix


def test_a_time_limit_ends_nccls_setup_and_the_registration_needs_none():
    assert judge([NCCL + LIMIT]).findings[0].name == "nccl-hang-at-init"
    (finding,) = judge([REGISTERED]).findings
    assert (finding.name, finding.severity) == ("nccl-hang-at-init", "warning")


@pytest.mark.parametrize(
    "text",
    [
        REGISTERED + "Epoch 0:  10%|#   | 1/10 [00:00<00:02, 4.00it/s]\n" + LIMIT,
        REGISTERED + "step 10\n",
        REGISTERED + "the model has 61706 parameters\n" + LIMIT,
        REGISTERED + "`Trainer.fit` stopped: `max_epochs=3` reached.\n",
        REGISTERED.replace("nccl", "gloo") + LIMIT,
        REGISTERED + LIMIT.replace("TIME LIMIT", "PREEMPTION"),
        REGISTERED + "ValueError: no labels\n" + LIMIT,
        NCCL.replace("Init START", "Init COMPLETE") + LIMIT,
        "step 1 loss 2.0\n" + NCCL + LIMIT,
        TORCHRUN,
        DEEPSPEED,
    ],
)
def test_what_went_on_or_ended_for_another_reason_did_not_hang(text):
    assert "nccl-hang-at-init" not in {finding.name for finding in judge([text]).findings}
