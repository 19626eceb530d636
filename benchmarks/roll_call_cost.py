"""What the roll call costs a healthy run of two hosts: time to the first line of the script, with
and without it.

    python benchmarks/roll_call_cost.py [--rounds 5]

Two network namespaces on a bridge, one rank each (needs root and iproute2). The sides take turns;
medians.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from faults.hosts import Host, hosts

SIDES = {"roll call": (), "--no-check": ("--no-check",)}
PACELINE = Path(sys.executable).parent / "paceline"


def first_line_s(pair: list[Host], folder: Path, options: tuple[str, ...]) -> tuple[float, str]:
    """Return the seconds until both ranks run their script, and what was said of the roll call."""
    begun = time.time()
    where = ("--nnodes", "2", "--master-addr", pair[0].address, "--nproc-per-node", "1")
    started = [
        subprocess.Popen(
            host.inside(
                [str(PACELINE), "run", *where, "--node-rank", str(node), *options, "train.py"]
            ),
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node, host in enumerate(pair)
    ]
    said = [process.communicate()[1] for process in started]
    if any(process.returncode for process in started):
        sys.exit("\n".join(said))
    times = [float((folder / f"began-{rank}").read_text()) - begun for rank in range(2)]
    return max(times), next(iter(re.findall(r"roll call: .*", said[0])), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as name, hosts(2) as pair:
        folder = Path(name)
        (folder / "train.py").write_text(
            "import os, time\nopen('began-' + os.environ['RANK'], 'w').write(str(time.time()))\n"
        )
        for number in range(rounds):
            order = list(SIDES) if number % 2 else list(reversed(SIDES))
            for side in order:
                took, said = first_line_s(pair, folder, SIDES[side])
                seconds[side].append(took)
                print(f"{side:12} {took:5.2f} s  {said}", flush=True)
    medians = {side: statistics.median(each) for side, each in seconds.items()}
    print(*(f"{side}: {median:.2f} s" for side, median in medians.items()), sep="\n")
    print(
        f"the roll call adds {medians['roll call'] - medians['--no-check']:.2f} s (asked: at"
        " most 3)"
    )


if __name__ == "__main__":
    main()
