"""Does ``paceline bench`` name what holds a script back? Planted brakes, on 1 and 2 ranks.

    python benchmarks/brakes.py                 # about five minutes
    python benchmarks/brakes.py --only link     # needs root and iproute2, as for the whole

Computing is replaced by sleeping, except for the tiny steps: two cores that others use too do not
compute alike for one rank and for two.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from launch import BIN, header

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from faults.hosts import hosts, slow_loopback

SCRIPT = Path(__file__).parent / "stage_delays" / "brakes.py"
# What is planted, and what bench has to say.
BRAKES = {
    "data": "data",
    "shared-disk": "data",
    "slow-data": "slow-rank",
    "slow-forward": "slow-rank",
    "slow-backward": "slow-rank",
    "slow-optimizer": "slow-rank",
    "log": "slow-rank",
    "tiny-log": "slow-rank",
    "tiny": "small-batch",
    "uneven": "uneven-ranks",
    "shared-memory": "compute",
    "code-for-each-rank": "other-code",
    "link": "communication",
}


def named(brake, folder, before=()):
    """Return what bench says of a planted brake."""
    options = ["--world", "1,2", "--oversubscribe", "--steps", "32", "--rounds", "2", "--json"]
    command = [*before, BIN / "paceline", "bench", *options, SCRIPT, brake, folder / "lock"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        return {"name": "failed", "sentence": ended.stderr.strip()}
    return json.loads(ended.stdout)["brake"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(BRAKES))
    only = parser.parse_args().only
    print(header())
    right = []
    for brake in [only] if only else BRAKES:
        with tempfile.TemporaryDirectory(prefix="brakes-") as folder:
            if brake == "link":
                with hosts(1) as (host,):
                    slow_loopback(host, "200mbit")
                    found = named(brake, Path(folder), before=host.inside([]))
            else:
                found = named(brake, Path(folder))
        right.append(found["name"] == BRAKES[brake])
        mark = "right" if right[-1] else f"WRONG, not {BRAKES[brake]}"
        print(f"{brake:<20}{found['name']:<16}{mark:<24}{found['sentence']}", flush=True)
    print(f"{sum(right)} of {len(right)} right")


if __name__ == "__main__":
    main()
