"""What diagnosis costs: a log of 100 MB, and how soon the short answers come.

    python benchmarks/explain.py [--megabytes 100] [--rounds 5]

The log is NCCL's INFO output of 64 ranks, with an error of one of them at its end. Its reading is
timed beside ``grep -c WARN`` and ``wc -l`` on the same file, in turns; memory is the largest
resident size of the process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PACELINE = Path(sys.executable).with_name("paceline")
# As NCCL 2.27 prints them.
_INFO = (
    (
        "node{node:02d}:{pid}:{tid} [{gpu}] NCCL INFO Channel {channel:02d}/0 : {rank}[{gpu}] ->"
        " {to}[{other}] via P2P"
    ),
    (
        "node{node:02d}:{pid}:{tid} [{gpu}] NCCL INFO Trees [0] {to}/-1/-1->{rank}->-1 [1]"
        " {to}/-1/-1->{rank}->-1"
    ),
    (
        "node{node:02d}:{pid}:{tid} [{gpu}] NCCL INFO NET/IB : Using [0]mlx5_{gpu}:1/IB [RO]; OOB"
        " ib0:10.0.0.{node}<0>"
    ),
    (
        "node{node:02d}:{pid}:{tid} [{gpu}] NCCL INFO comm 0x55d0{tid:06x} rank {rank} nranks 64 -"
        " Init COMPLETE"
    ),
    (
        "node{node:02d}:{pid}:{tid} [{gpu}] NCCL INFO AllReduce: opCount {count:x} sendbuff"
        " 0x7f{tid:08x} count 8388608"
    ),
)
_END = """[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/me/train.py", line 91, in <module>
[rank3]:     main()
[rank3]:   File "/home/me/train.py", line 64, in main
[rank3]:     loss.backward()
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.1 GiB
"""


def write_log(path: Path, num_bytes: int) -> None:
    """Write the log: lines of all ranks in turn until there are enough."""
    block, count = [], 0
    while sum(map(len, block)) < 2**20:
        rank = count % 64
        values = {
            "node": rank // 8,
            "pid": 4000 + rank,
            "tid": 9000 + rank,
            "gpu": rank % 8,
            "rank": rank,
        }
        values |= {
            "channel": count % 24,
            "to": (rank + 1) % 64,
            "other": (rank + 1) % 8,
            "count": count,
        }
        block.append(_INFO[count % len(_INFO)].format(**values) + "\n")
        count += 1
    text = "".join(block).encode()
    with path.open("wb") as file:
        for _ in range(num_bytes // len(text)):
            file.write(text)
        file.write(_END.encode())


def timed(*command: str) -> tuple[float, int, str]:
    """Run a command; return its seconds, largest resident size in bytes, and first line."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return time.perf_counter() - started, usage.ru_maxrss * 1024, said.partition("\n")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, script = Path(folder, "run.log"), Path(folder, "train.py")
        write_log(log, options.megabytes * 10**6)
        script.write_text("import torch\n\nprint(torch.ones(1))\n")
        commands = {
            f"explain, {log.stat().st_size / 1e6:.0f} MB of NCCL INFO": (
                str(PACELINE),
                "explain",
                str(log),
            ),
            "grep -c WARN, the same file": ("grep", "-c", "WARN", str(log)),
            "wc -l, the same file": ("wc", "-l", str(log)),
            "explain NET001": (str(PACELINE), "explain", "NET001"),
            "explain nonsense (an error)": (str(PACELINE), "explain", "nonsense"),
            "lint train.py": (str(PACELINE), "lint", str(script)),
            "python -c pass": (sys.executable, "-c", "pass"),
        }
        results: dict[str, list[tuple[float, int, str]]] = {name: [] for name in commands}
        for _ in range(options.rounds):
            for name, command in commands.items():
                results[name].append(timed(*command))
    print(f"{'':44}{'median s':>9}{'min':>7}{'max':>7}{'MB':>6}  first line")
    for name, rounds in results.items():
        seconds = [each[0] for each in rounds]
        memory = max(each[1] for each in rounds) / 1e6
        row = f"{name:44}{statistics.median(seconds):9.2f}{min(seconds):7.2f}{max(seconds):7.2f}{memory:6.0f}"
        print(f"{row}  {rounds[-1][2][:70]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
