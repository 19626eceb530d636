"""A command line of torchrun means what argparse makes of it."""

import pytest
from torch.distributed.run import get_args_parser

from paceline.launch.plan.command_line import in_full
from paceline.launch.plan.options import OPTIONS


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--nnode=2 t.py", "--nnodes=2 t.py"),
        ("--nproc-per 2 t.py", "--nproc-per-node 2 t.py"),
        ("--nproc_per 2 t.py", "--nproc_per_node 2 t.py"),
        ("--redirect=3 --tee=3 t.py", "--redirects=3 --tee=3 t.py"),
        ("--standal t.py --nnode 2", "--standalone t.py --nnode 2"),
        ("-t3 -r=3 t.py -t=1", "-t3 -r3 t.py -t=1"),
        ("--role --nnode t.py", "--role --nnode t.py"),
        ("--rdzv x t.py", "--rdzv x t.py"),  # ambiguous
        (
            "--nproc 2 --nnode 2 t.py",
            "--nproc-per-node 2 --nnodes 2 t.py",
        ),  # newer argparse takes it
        ("--nnodse=2 --nnode=2 t.py", "--nnodse=2 --nnode=2 t.py"),  # unknown
        ("--run-p t.py", "--run-path t.py"),
        (
            "--max=3 --max-t 2 t.py",
            "--max-restarts=3 --max-t 2 t.py",
        ),  # --max-time is not torchrun's
        ("--json --hang-timeout 5m --nnode 1 t.py", "--json --hang-timeout 5m --nnodes 1 t.py"),
        ("-m mod -m", "-m mod -m"),
        ("-", "-"),
        ("--", "--"),
        ("--nnode", "--nnodes"),
        ("", ""),
    ],
)
def test_abbreviations_are_written_out(words, expected):
    assert in_full(words.split()) == expected.split()


@pytest.mark.parametrize(
    "words",
    [
        "t.py -- a -- b",
        "t.py -- --nnodes 2",
        "t.py a -- b",
        "t.py --x -- b",
        "t.py --",
        "-- t.py -- a",
        "-- t.py",
        "--nnodes 1 t.py -- -- a",
        "--nnodes 1 -- t.py -- --help",
    ],
)
def test_the_script_gets_what_argparse_hands_it(words):
    theirs = get_args_parser().parse_args(words.split())
    ours = in_full(words.split())
    assert ours[ours.index("--") + 1 :] == [theirs.training_script, *theirs.training_script_args]


def unambiguous():
    """Every beginning of an option that argparse takes, with the option."""
    parser = get_args_parser()
    for option in OPTIONS:
        for form in sorted({option.long, f"--{option.name}"}):
            for end in range(3, len(form)):
                begun = [form[:end]] if option.flag else [form[:end] + "=1"]
                if (
                    not (option.ours or option.newer)
                    and len(parser._get_option_tuples(begun[0])) == 1
                ):
                    yield begun[0], option


@pytest.mark.parametrize(
    ("word", "option"), list(unambiguous()), ids=lambda value: getattr(value, "name", value)
)
def test_every_abbreviation_that_argparse_takes_is_taken(word, option):
    found = in_full([word, "t.py"])[0].partition("=")[0]
    assert found in (option.long, f"--{option.name}")
