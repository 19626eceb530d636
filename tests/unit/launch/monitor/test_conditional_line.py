"""Which lines only some ranks reach."""

from __future__ import annotations

import textwrap

import pytest

from paceline.launch.monitor.conditional_line import guard_of

CASES = {
    "in the block": ("if rank == 0:\n    total()  # here", "if rank == 0:"),
    "in the other block": (
        "if rank == 0:\n    pass\nelse:\n    total()  # here",
        "else of if rank == 0:",
    ),
    "by the environment": (
        "if os.environ['RANK'] == '0':\n    total()  # here",
        "if os.environ['RANK'] == '0':",
    ),
    "of Accelerate": (
        "if accelerator.is_main_process:\n    total()  # here",
        "if accelerator.is_main_process:",
    ),
    "another kind of rank": ("if args.lora_rank > 0:\n    total()  # here", ""),
    "a word with rank in it": ("if args.rerank:\n    total()  # here", ""),
    "whether there are ranks": ("if args.local_rank != -1:\n    total()  # here", ""),
    "whether a rank is known": ("if rank is not None:\n    total()  # here", ""),
    "of a method": (
        "if trainer.is_global_zero:\n    total()  # here",
        "if trainer.is_global_zero:",
    ),
    "of a function": ("if dist.get_rank() == 0:\n    total()  # here", "if dist.get_rank() == 0:"),
    "deep inside": (
        "def main(rank):\n    for x in y:\n        try:\n            if not rank:\n                total()  # here\n"
        "        finally:\n            pass",
        "if not rank:",
    ),
    "after a return": (
        "def validate(rank):\n    if rank != 0:\n        return None\n    total()  # here",
        "if rank != 0: return None",
    ),
    "after a continue": (
        "for x in y:\n    if local_rank:\n        continue\n    total()  # here",
        "if local_rank: continue",
    ),
    "after a return for some of them": (
        "def f():\n    if rank and done:\n        return\n    total()  # here",
        "",
    ),
    "after an exit, which is said of the rank that has ended": (
        "if rank != 0:\n    sys.exit()\ntotal()  # here",
        "",
    ),
    "by a name for it": ("saves = rank == 0\nif saves:\n    total()  # here", "if saves:"),
    "all ranks in one process": (
        "for rank in range(4):\n    if rank == 0:\n        total()  # here",
        "",
    ),
    "decorated in another way": ("@master_only\ndef log():\n    total()  # here", "@master_only"),
    "on the same line": ("if rank == 0: total()  # here", "if rank == 0:"),
    "decorated": ("@rank_zero_only\ndef log():\n    total()  # here", "@rank_zero_only"),
    "the test itself": ("if rank == total():  # here\n    pass", ""),
    "sizes are alike on all ranks": ("if world_size > 1:\n    total()  # here", ""),
    "the number of ranks too": ("if num_ranks > 1:\n    total()  # here", ""),
    "another condition": ("if step % 10 == 0:\n    total()  # here", ""),
    "beside the block": ("if rank == 0:\n    print()\ntotal()  # here", ""),
    "after the return of all": ("def f():\n    if done:\n        return\n    total()  # here", ""),
    "not Python": ("if rank == 0\n    total()  # here", ""),
}


@pytest.mark.parametrize("source, expected", CASES.values(), ids=CASES)
def test_guard_of_a_line(source, expected):
    text = textwrap.dedent(source)
    line = 1 + next(number for number, each in enumerate(text.splitlines()) if "# here" in each)
    found = guard_of(text, line)
    assert (found[1] if found else "") == expected


def test_the_line_of_the_guard_is_told():
    assert guard_of("x = 1\nif rank == 0:\n    y = 2\n    total()", 4) == (2, "if rank == 0:")
