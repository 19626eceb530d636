"""``paceline new``: its options, and what it prints."""

from __future__ import annotations

import sys

import click

from paceline.cli import command_help
from paceline.errors import EXIT_OK
from paceline.text.quoting import word


@click.command("new", cls=command_help.PlainCommand)
@click.argument("target", metavar="NAME")
@click.option(
    "--from",
    "kind",
    default="session",
    metavar="KIND",
    help="What it trains with: session, trainer, ddp, fabric, lightning, accelerate or"
    " transformers. [session]",
)
def NEW(target: str, kind: str) -> int:
    """Write a small project to begin with: a script that trains, its test, and a profile for Slurm.

    NAME is its folder, which must be missing or empty. The script is one of paceline's examples: it
    runs under python, paceline run, torchrun and paceline submit, on CPUs and on GPUs.
    """
    from paceline.cli import new

    files = new.create(target, kind)
    print(target)
    print(f"wrote {', '.join(files)}", file=sys.stderr)
    print("next:", file=sys.stderr)
    for line in _next_commands(target):
        print(f"  {line}", file=sys.stderr)
    return EXIT_OK


def _next_commands(target: str) -> tuple[str, ...]:
    return (
        f"cd {word(target)}",
        "python -m pip install -r requirements.txt",
        "paceline run --nproc-per-node 2 train.py",
    )
