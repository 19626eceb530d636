"""Format ``--help``: options in groups, each in one form, and two examples for every command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click
from click.shell_completion import CompletionItem

from paceline.launch.plan.option import Option
from paceline.launch.plan.options import OPTIONS
from paceline.launch.plan.submit_options import OWN
from paceline.text import terminal
from paceline.text.json_text import print_json


def _in_groups(options: Sequence[Option]) -> Mapping[str, Sequence[str]]:
    """Return the names of options by heading; options without a group are listed last, under
    ``FURTHER``.
    """
    groups: dict[str, list[str]] = {}
    for option in options:
        if option.group:
            groups.setdefault(option.group, []).append(option.name)
    return groups


GROUPS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "run": _in_groups(OPTIONS),
    "submit": _in_groups(OWN),
}
# The options that people use first; --help-all shows the others too.
FIRST: Mapping[str, Sequence[str]] = {
    "run": (
        "nproc_per_node",
        "nnodes",
        "node_rank",
        "master_addr",
        "max_restarts",
        "module",
        "check_only",
        "hang_timeout",
        "max_time",
        "run_dir",
    ),
    "submit": (
        "nodes",
        "gpus_per_node",
        "cpus_per_gpu",
        "time",
        "partition",
        "account",
        "profile",
        "param",
        "follow",
        "dry_run",
    ),
}
_ALL = "paceline.help_all"  # where a context says that all options are shown
COMMANDS: Mapping[str, Sequence[str]] = {
    "Start": ("new", "run", "submit", "translate"),
    "Measure": ("bench", "tune", "forecast", "top", "report", "verify"),
    "Diagnose": ("doctor", "lint", "explain", "why"),
    "Runs and jobs": ("jobs", "follow", "cancel", "clean", "checkpoint", "completion"),
    "For programs": ("schema", "skill"),
}
FURTHER = {"run": "Further options", "submit": "Options of paceline run", "": "Options"}

# The option of every command that prints data.
JSON = click.option("--json", "as_json", is_flag=True, help="Print data for a program.")


def _show_all(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    # A shell that completes a line parses it too, and must get no help in its words.
    if is_wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


# The option of the commands that show only some of their options at first.
HELP_ALL = click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all,
    help="Show all options, and exit.",
)

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "paceline": ("paceline run --nproc-per-node 4 train.py", "paceline explain run.log"),
    "paceline run": (
        "paceline run --nproc-per-node 4 train.py --lr 0.1",
        "paceline run --nnodes 2 --node-rank 0 --master-addr node-a train.py",
    ),
    "paceline submit": (
        "paceline submit --nodes 2 --gpus-per-node 4 --time 2h train.py --lr 0.1",
        "paceline submit --profile cluster --dry-run train.py",
    ),
    "paceline checkpoint": (
        "paceline checkpoint list",
        "paceline checkpoint verify paceline-runs/NAME",
    ),
    "paceline checkpoint list": (
        "paceline checkpoint list",
        "paceline checkpoint list paceline-runs/NAME --json",
    ),
    "paceline checkpoint verify": (
        "paceline checkpoint verify paceline-runs/NAME",
        "paceline checkpoint verify RUN/checkpoints/00012-step-120",
    ),
    "paceline checkpoint export": (
        "paceline checkpoint export paceline-runs/NAME model.safetensors",
        "paceline checkpoint export RUN/checkpoints/00012-step-120 model.pt",
    ),
    "paceline explain": ("paceline explain slurm-4711.out", "paceline explain NET001"),
    "paceline schema": ("paceline schema lint", "paceline schema checkpoint list"),
    "paceline skill": ("paceline skill",),
    "paceline lint": ("paceline lint job.sh train.py", "paceline lint --sarif jobs/*.sbatch"),
    "paceline top": ("paceline top", "paceline top paceline-runs/20261122-digits --once"),
    "paceline tune": (
        "paceline tune --nproc-per-node 2 train.py --lr 0.1",
        "paceline tune --batch-size 64 mypackage.data:train_set",
    ),
    "paceline bench": (
        "paceline bench --world 1,2,4 train.py --lr 0.1",
        "paceline bench --scaling strong --batch-option '-b {per_rank}' train.py",
    ),
    "paceline verify": (
        "paceline verify train.py --epochs 2",
        "paceline verify --world 1,2,4 --batch-option '-b {per_rank}' train.py",
    ),
    "paceline report": (
        "paceline report paceline-runs/20261122-digits",
        "paceline report BEFORE AFTER --max-regression 5%",
    ),
    "paceline bench network": (
        "paceline bench network --nproc-per-node 4",
        "paceline bench network --seconds 120 --json",
    ),
    "paceline forecast": (
        "paceline forecast paceline-runs/NAME --gpus-per-node 8 --world 16,64",
        "paceline forecast NAME --samples 1281167 --epochs 90 --price 2.50",
    ),
    "paceline why": ("paceline why", "paceline why node-a node-b"),
    "paceline translate": (
        "paceline translate -- accelerate launch --num_processes 4 train.py",
        "paceline translate 'srun torchrun --nnodes 2 train.py --lr 0.1'",
    ),
    "paceline completion": ("paceline completion bash", "paceline completion fish"),
    "paceline new": ("paceline new my-training", "paceline new my-training --from ddp"),
    "paceline endpoint": ("paceline endpoint", "paceline endpoint --run-dir paceline-runs/NAME"),
    "paceline doctor": ("paceline doctor", "paceline doctor --topo topo.txt"),
    "paceline follow": ("paceline follow 4711", "paceline follow paceline-runs/NAME"),
    "paceline jobs": ("paceline jobs", "paceline jobs SWEEP --sort val/accuracy --descending"),
    "paceline clean": ("paceline clean", "paceline clean --yes"),
    "paceline cancel": ("paceline cancel 4711", "paceline cancel paceline-runs/SWEEP"),
    "paceline requeue": (
        "paceline requeue paceline-runs/NAME --status $status",
        "paceline requeue paceline-runs/NAME --status 75",
    ),
}


class HelpedCommand(click.Command):
    """A command that lists its options in groups."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the options that begin so, each in one form as in the help."""
        items = super().shell_complete(ctx, incomplete)
        if "_" in incomplete:
            return items
        return [item for item in items if "_" not in str(item.value)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, and the examples after them."""
        name = str(ctx.command.name)
        groups, rest = GROUPS.get(name, {}), FURTHER.get(name, FURTHER[""])
        records = {
            parameter.name: parameter
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option)
        }
        if name in FIRST and _ALL not in ctx.meta:
            first = (*FIRST[name], "help_all", [*records][-1])  # the last is --help
            records = {member: records[member] for member in first}
            groups, rest = {}, "Options that people use first"
        for heading, names in groups.items():
            members = [records.pop(member) for member in names if member in records]
            _write(ctx, formatter, heading, members)
        _write(ctx, formatter, rest, list(records.values()))
        _write_examples(ctx, formatter)


class PlainCommand(HelpedCommand):
    """A command whose function does all of its work, and returns the exit status.

    What click returns is the call of that function: ``main`` makes it outside of click.
    """

    def invoke(self, ctx: click.Context) -> Callable[[], int]:
        assert self.callback is not None
        return partial(self.callback, **ctx.params)


class HelpedGroup(click.Group):
    """A group of commands that shows their full summaries."""

    command_class = PlainCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every command that people type with the whole first sentence of its help, under
        its heading, and the examples after them.
        """
        typed = [name for name, command in self.commands.items() if not command.hidden]
        sections = COMMANDS if ctx.parent is None else {"Commands": sorted(typed)}
        for heading, names in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, _summary(self.commands[name])) for name in names])
        _write_examples(ctx, formatter)


HelpedGroup.group_class = HelpedGroup  # only here does the name exist


def _summary(command: click.Command) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split())


def _write(
    ctx: click.Context,
    formatter: click.HelpFormatter,
    heading: str,
    parameters: Sequence[click.Parameter],
) -> None:
    rows = [
        _one_form(record)
        for parameter in parameters
        if (record := parameter.get_help_record(ctx)) is not None
    ]
    if rows:
        with formatter.section(heading):
            formatter.write_dl(rows, col_max=26)  # click's 30 breaks more lines at 80 columns


def _one_form(record: tuple[str, str]) -> tuple[str, str]:
    """Leave out the form with underscores, which is accepted for compatibility with torchrun."""
    forms, text = record
    dashed = [form for form in forms.split(", ") if "_" not in form.split(" ")[0]]
    underscored = [form for form in forms.split(", ") if form not in dashed]
    # Only the last form has the placeholder of the value.
    value = underscored[-1].partition(" ")[2] if underscored else ""
    return " ".join(filter(None, (", ".join(dashed), value))), text


def _write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    program = str(ctx.find_root().info_name)  # paceline, or python -m paceline
    path = ctx.command_path.replace(program, "paceline", 1)
    examples = EXAMPLES.get(path, ())
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


def show(result: Any, as_json: bool) -> None:
    """Print the result of a command as text or JSON: a page, an answer, a report."""
    if as_json:
        print_json(result)
    else:
        terminal.show(result.render())
