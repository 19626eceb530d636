"""``make demo`` starts two ranks where there is no GPU."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_has_two_ranks_without_gpus():
    script = ROOT / "scripts" / "demo_ranks.py"
    without_gpus = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=without_gpus, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "--nproc-per-node 2\n"), ended.stderr
