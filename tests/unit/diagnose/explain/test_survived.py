"""What training continued after is not the cause of a later end, and no fault if the run ended well."""

from __future__ import annotations

import pytest

from paceline.diagnose.explain import judge

IMAGE = """\
WARNING:data:skipping broken image
Traceback (most recent call last):
  File "/home/ada/data/images.py", line 41, in load
    image = Image.open(path).convert("RGB")
  File "/opt/venv/lib/python3.11/site-packages/PIL/Image.py", line 3498, in open
    raise UnidentifiedImageError(msg)
PIL.UnidentifiedImageError: cannot identify image file '/data/train/00123.jpg'
"""
NCCL = "[rank3]:[E1121 03:12:44.120 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, NumelIn=25557032, NumelOut=25557032, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
LIMIT = "slurmstepd: error: *** JOB 81231 ON n14 CANCELLED AT 2026-11-21T08:00:09 DUE TO TIME LIMIT ***\n"
OOM = "| WARNING: ran out of memory, skipping batch: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB\n"
SUMMARY = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n  exitcode  : 1 (pid: 311)\n"
LAUNCHED = "+ torchrun --nproc-per-node 8 train.py\n"


def steps(first, last, form="step {} | loss 2.31 | lr 1e-4\n"):
    return "".join(form.format(step) for step in range(first, last))


def names(*parts):
    return [finding.name for finding in judge(["".join(parts)]).findings]


@pytest.mark.parametrize(
    ("end", "name"),
    [
        (NCCL, "collective-timeout"),
        (LIMIT, "slurm-time-limit"),
        ("Killed\n", "rank-died-signal"),
        (SUMMARY, "launcher-summary-only"),
        ("fatal: the cable is loose\n", "cause-unknown"),
        ("^CTraceback (most recent call last):\nKeyboardInterrupt\n", "rank-died-signal"),
    ],
    ids=["timeout", "time limit", "killed", "summary", "unknown", "by hand"],
)
@pytest.mark.parametrize("caught", [IMAGE, OOM], ids=["image", "memory"])
@pytest.mark.parametrize("launched", ["", LAUNCHED], ids=["", "torchrun"])
def test_what_was_caught_long_before_is_not_the_cause(caught, launched, end, name):
    assert names(launched, steps(0, 50), caught, steps(50, 250), end)[0] == name


def test_it_is_shown_apart():
    shown = judge([steps(0, 50) + IMAGE + steps(50, 250) + LIMIT]).render().splitlines()
    assert shown[shown.index("Earlier, and training continued after it:") + 1].startswith(
        "  user-exception: Unident"
    )


@pytest.mark.parametrize("caught", [IMAGE, OOM], ids=["image", "memory"])
def test_nothing_is_wrong_with_a_run_that_continued(caught):
    assert names(steps(0, 50), caught, steps(50, 90)) == ["no-error-in-log"]


def test_steps_after_many_others_are_seen():
    form = "step {} | loss 2.31 | lr 1e-4\n"
    assert (
        names(steps(0, 5000, form), IMAGE, steps(5000, 5200, form), NCCL)[0] == "collective-timeout"
    )


def test_a_repeated_fault_counts_to_its_last_line():
    assert (
        names(*(OOM + steps(at, at + 3) for at in range(0, 3000, 3)), LIMIT)[0]
        == "slurm-time-limit"
    )


@pytest.mark.parametrize(
    "quoted",
    [
        "sample 17: >>> model(x)\\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
        '{"prompt": "why does NCCL say unhandled system error?", "target": "OSError: [Errno 28] No space left on device"}\n',
        "generated: Segmentation fault (core dumped)\n",
        IMAGE,
    ],
)
@pytest.mark.parametrize(
    "well",
    [
        "{'train_runtime': 812.1, 'train_loss': 0.21, 'epoch': 3.0}\n",
        "`Trainer.fit` stopped: `max_epochs=3` reached.\n",
        "Training finished in 12 min\n",
        "job 77 completed successfully\n",
    ],
)
def test_text_that_is_printed_as_data_is_no_fault_of_a_run_that_ended_well(quoted, well):
    assert names(quoted, well) == ["no-error-in-log"]


def test_a_run_that_ended_well_on_one_rank_says_nothing_of_another():
    text = "[rank1]: ValueError: no labels\n[rank0]: Training finished in 12 min\n"
    assert names(text)[0] == "user-exception"


def test_an_exception_after_the_end_of_training_is_the_cause():
    assert names(steps(0, 20), "Training finished\n", IMAGE)[0] == "user-exception"


RAISED = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 50, in step
    raise ValueError("no labels")
ValueError: no labels
"""


@pytest.mark.parametrize(
    "text",
    [
        LAUNCHED
        + steps(0, 50)
        + RAISED
        + steps(50, 52)
        + NCCL,  # the last steps of others that nothing tells apart
        steps(0, 100) + RAISED + steps(0, 100) + NCCL,  # the logs of two ranks, one after the other
        steps(0, 50)
        + RAISED
        + "wandb: train/loss 0.31\nwandb: train/global_step 50\nwandb: train/epoch 1\n"
        + SUMMARY,
        steps(0, 50, "[rank0]: step {} loss 2\n")
        + RAISED.replace("\n", "\n[rank1]: ").rstrip(" :]1knar[")
        + "\n"
        + NCCL,
    ],
    ids=["two more steps", "two logs", "summary of a tracker", "another rank"],
)
def test_an_exception_that_ended_its_process_stays_the_cause(text):
    assert names(text)[0] in ("user-exception", "script-error-on-one-rank")


def test_a_rank_that_never_says_a_step_is_alive_while_the_others_train():
    caught = "".join(f"[rank3]: {line}\n" for line in IMAGE.splitlines())
    form = "[rank0]: step {} loss 2.1\n"
    assert names(steps(0, 50, form), caught, steps(50, 90, form), LIMIT)[0] == "slurm-time-limit"


def test_a_broken_gpu_stays_the_cause():
    text = "[1221.117] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    assert names(steps(0, 50), text, steps(50, 60), NCCL)[0] == "gpu-hardware-error"
