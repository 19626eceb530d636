"""What a program logs as a warning, and what it says that it left out, is not the cause."""

from __future__ import annotations

import pytest

from paceline.diagnose.explain import judge

TIMEOUT = (
    "[rank0]:[E1121 03:12:44.120 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds"
)
KEY = "Traceback (most recent call last):\n  File \"/home/ada/train.py\", line 3, in main\nKeyError: 'labels'"
OOM = "| WARNING: ran out of memory: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 7.93 GiB total capacity)"


def names(*lines):
    return [finding.name for finding in judge(lines).findings]


@pytest.mark.parametrize(
    "warned",
    [
        "02/06/2026 09:12:44 - WARNING - rows.utils - Checksum failed: missing SHA-1 hash value in info.json.",
        "WARNING:root:index might be corrupted: file might be corrupted, built anew",
        "INFO:root:fused kernels are off: ImportError: libfused.so: cannot open shared object file",
        "2026-01-02 03:04:05,678 WARNING cache.py:12 -- No space left on device while writing the cache, going on",
        "[2026-01-02 03:04:05,678] [INFO] [ops.py:12:load] No module named 'flash_ops', falling back",
        "W0102 03:04:05.678000 77 cache.py:12] No space left on device",
    ],
)
@pytest.mark.parametrize(
    ("end", "name"), [(TIMEOUT, "collective-timeout"), (KEY, "user-exception")]
)
def test_a_warning_is_not_the_cause_of_what_failed_later(warned, end, name):
    assert names(warned, end)[0] == name


def test_a_warning_counts_where_nothing_else_is_said():
    line = "2026-01-02 03:04:05,678 INFO stdout: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert names(line, "2026-01-02 03:04:06,000 INFO child exited with code 1")[0] == "cuda-oom"


def test_what_nccl_warns_of_is_an_error():
    assert names("n1:71:92 [0] init.cu:218 WARN Cuda failure 'out of memory'")[0] == "cuda-oom"
    assert (
        names("n1:71:92 [0] init.cc:741 NCCL WARN Duplicate GPU detected : rank 1 and rank 0")[0]
        == "duplicate-gpu"
    )


@pytest.mark.parametrize(
    "said", [" Skipping batch", "attempt 2 of 5", "retrying with half of it", "falling back to CPU"]
)
def test_a_fault_that_the_program_left_out_is_none_after_few_steps(said):
    steps = [
        f"| epoch 001: {step} / 1374 loss=14.3, num_updates={step}, wps=4960 world_size=2"
        for step in (200, 300)
    ]
    assert (
        names(steps[0], OOM, said, steps[1], steps[1].replace("300", "400"))[0] == "no-error-in-log"
    )


def test_the_same_fault_counts_where_it_ends_the_run():
    assert (
        names(
            "| epoch 001: 200 / 1374 loss=14.3",
            OOM,
            " Skipping batch",
            KEY.replace("KeyError: ", OOM),
        )[0]
        == "cuda-oom"
    )


HF = [
    "{'loss': 1.21, 'grad_norm': 0.4, 'epoch': 0.1}",
    "{'loss': 1.12, 'grad_norm': 0.4, 'epoch': 0.2}",
]
ENDINGS = [
    "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-01-02T03:04:06 ***",
    "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-02T03:04:06 ***",
    "job.sh: line 30: 4121 Terminated              python monitor.py",
]


@pytest.mark.parametrize(
    "lines",
    [
        ["/bin/sh: nvidia-smi: command not found", *HF],
        [
            "404 Client Error: Not Found for url: https://huggingface.co/ada/x/resolve/main/adapter_config.json",
            *HF,
        ],
        ["Exception: the news of the day could not be read", *HF],
        ["sbatch: error: This partition will be retired next month", "Submitted batch job 1234"],
        [
            "WARNING [x.py:1] CUDA out of memory in graph capture, eager instead",
            "Application startup complete.",
        ],
        *(["`Trainer.fit` stopped: `max_steps=10` reached.", ending] for ending in ENDINGS),
        *(["Training complete in 3m 2s", ending] for ending in ENDINGS),
    ],
)
def test_what_the_run_went_on_after_or_had_ended_before_is_no_fault(lines):
    assert names(*lines) == ["no-error-in-log"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_ending_from_outside_counts_where_training_was_going_on(ending):
    ended = ("slurm-job-ended", "rank-died-signal")
    assert names("Preparation finished successfully", ending)[0] in ended
    assert names("Preparation finished successfully", *HF, ending)[0] in ended
