"""The commands that measure: ``bench network``, ``forecast``, ``top`` and ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli import command_help, completed_words
from paceline.cli.bench_command import BENCH
from paceline.errors import EXIT_OK
from paceline.text.quoting import printable_lines

_POSITIVE = click.FloatRange(0, min_open=True)


@BENCH.command("network")
@click.option(
    "--nproc-per-node",
    type=click.IntRange(1),
    metavar="N",
    help="Ranks on this node. [one per GPU, 2 without GPUs]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    metavar="S",
    default=20.0,
    help="Time budget: sizes stop growing when it is spent. [20]",
)
@click.option(
    "--rounds",
    type=click.IntRange(2, 100),
    metavar="N",
    default=5,
    help="How often each size is measured. [5]",
)
@command_help.JSON
def _bench_network(nproc_per_node: int | None, seconds: float, rounds: int, as_json: bool) -> int:
    """Measure all_reduce between ranks, 1 KiB to 256 MiB: latency and bus bandwidth.

    Starts ranks on this node. Under srun, torchrun or paceline run it measures between the ranks
    that those have started: srun paceline bench network.
    """
    from paceline.measure import network

    return network.main(
        nproc_per_node=nproc_per_node, seconds=seconds, rounds=rounds, as_json=as_json
    )


@click.command("forecast", cls=command_help.PlainCommand)
@click.argument("run", required=False, default="", shell_complete=completed_words.runs)
@click.option(
    "--world", "worlds", metavar="N,N,...", help="World sizes. [2, 4, 8, ... 4096]", default=""
)
@click.option(
    "--gpus-per-node", type=click.IntRange(1), metavar="N", help="Ranks of a node. [as measured]"
)
@click.option(
    "--network",
    "networks",
    metavar="FILE",
    multiple=True,
    help="What bench network --json has printed; again for another place.",
)
@click.option("--samples", type=_POSITIVE, metavar="N", help="Samples of an epoch.")
@click.option("--epochs", type=_POSITIVE, metavar="N", help="Number of epochs. [1]")
@click.option("--price", type=click.FloatRange(0), metavar="MONEY", help="Price of a GPU hour.")
@command_help.JSON
def FORECAST(run: str, as_json: bool, **options: Any) -> int:  # a constant too
    """Forecast a script's speed on more GPUs from a bench on a few: samples/s, efficiency,
    intervals, and where scaling ends.

    RUN is the run folder of a bench, or its name in paceline-runs/; without it the newest bench
    there. With --samples: hours and GPU hours, with --price also money.
    """
    from paceline.measure import forecast

    print(printable_lines(forecast.answer(run, as_json=as_json, **options)))
    return EXIT_OK


@click.command("top", cls=command_help.PlainCommand)
@click.argument("run", required=False, default="", shell_complete=completed_words.runs)
@click.option("--once", is_flag=True, help="Print it once, and end.")
@click.option(
    "--interval",
    type=click.FloatRange(0.5, 3600),
    default=2.0,
    metavar="SECONDS",
    help="Seconds between two updates. [2]",
)
@command_help.JSON
def TOP(run: str, once: bool, interval: float, as_json: bool) -> int:
    """Show the speed of a running job: where the time of a step goes, and which rank is slow.

    RUN is a run's folder, or its name in paceline-runs/; without it the run there that wrote its
    speed last. Works on every machine that sees the folder, until the run ends.
    """
    from paceline.measure import top

    try:
        top.show(run, once=once, as_json=as_json, interval_s=interval)
    except KeyboardInterrupt:  # the usual way to end it
        print()
    return EXIT_OK


class _Percent(click.ParamType[float]):
    """A share in percent, with or without its sign: ``5%`` or ``5``."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return float(str(value).removesuffix("%")) / 100
        except ValueError:
            self.fail(f"{value!r} is not a share in percent such as 5%", param, ctx)


@click.command("report", cls=command_help.PlainCommand)
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=completed_words.runs)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The page. [report.html in the run folder]",
)
@click.option("--text", "as_text", is_flag=True, help="Print the text only, and write no page.")
@click.option(
    "--max-regression",
    type=_Percent(),
    metavar="PERCENT",
    help="Of two runs: exit status 1 if the second is slower by more, 2 if that is not known.",
)
@click.option(
    "--max-loss-increase",
    type=_Percent(),
    metavar="PERCENT",
    help="The same for the losses that both have logged at equal steps.",
)
@command_help.JSON
def REPORT(  # noqa: PLR0917  # click passes options by name
    runs: tuple[str, ...],
    output: Path | None,
    as_text: bool,
    as_json: bool,
    max_regression: float | None,
    max_loss_increase: float | None,
) -> int:
    """Show what runs did and how fast: a text here, and an HTML page that needs no network.

    RUN is the folder of a run, a sweep or a verify, or its name in paceline-runs/; without it what
    wrote last there. Several runs, the elements of a sweep, and the trials of a verify are
    compared. The page needs the extra paceline[report].
    """
    from paceline.measure.report import regression, report

    asked = {regression.SPEED: max_regression, regression.LOSS: max_loss_increase}
    return report(
        runs,
        output=output,
        as_text=as_text,
        as_json=as_json,
        most_grown={name: most for name, most in asked.items() if most is not None},
    )
