"""Write the files of a new project as texts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.cli.new.kinds import Kind, promised_percent

SCRIPT, TEST, REQUIREMENTS = "train.py", "test_train.py", "requirements.txt"
README, IGNORED, PROFILE = "README.md", ".gitignore", ".paceline/profiles/cluster.toml"

_README = """\
# {name}

`train.py` trains with {trains_with}. Replace its data and its model by your own.

```bash
python -m pip install -r requirements.txt
python train.py                              # one process
paceline run --nproc-per-node 2 train.py     # two ranks; without the option one per GPU
python -m pytest                             # trains on two ranks, on CPUs
paceline lint train.py                       # looks for mistakes
```

On a Slurm cluster, after filling in `{profile}`:

```bash
paceline profile check cluster
paceline submit --profile cluster --nodes 2 train.py
paceline jobs
```
"""

_TEST = '''\
"""The training runs on two ranks, and is as accurate as train.py promises. Takes a minute."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("train.py")
LEAST_PERCENT = {percent}


def test_two_ranks_train(tmp_path):
    command = [sys.executable, "-m", "paceline", "run", "--nproc-per-node", "2", SCRIPT]
    on_cpus = {{**os.environ, "CUDA_VISIBLE_DEVICES": ""}}  # runs on any machine
    ended = subprocess.run(
        command, cwd=tmp_path, env=on_cpus, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    accuracies = re.findall(r"accuracy (\\S+) %", ended.stdout)
    assert float(accuracies[-1]) >= LEAST_PERCENT
'''

_IGNORED = """\
__pycache__/
.venv/
lightning_logs/
paceline-runs/
trainer_output/
"""

_PROFILE = """\
# What your cluster asks for: paceline submit --profile cluster train.py
# An option on the command line counts more. To compare this file with the cluster:
#   paceline profile check cluster

[slurm]
time = "1:00:00"
# partition = "gpu"
# account = "physics"
# gpus-per-node = 4
# cpus-per-gpu = 8
# mem = "64G"

[setup]
# modules = ["cuda/12.4"]
# lines = ["source .venv/bin/activate"]

[environment]
# OMP_NUM_THREADS = "4"
"""


def files(
    kind: Kind, sources: Mapping[str, str], *, name: str, requirements: Sequence[str]
) -> dict[str, str]:
    """Return the texts of a project's files, by their paths in its folder.

    Args:
        kind: What kind of project it is.
        sources: Texts of the kind's script and parts, by the names of their files.
        name: Name of the project.
        requirements: Lines of ``requirements.txt``.
    """
    script = sources[kind.script]
    readme = _README.format(name=name, trains_with=kind.trains_with, profile=PROFILE)
    return {
        SCRIPT: script.replace(f"examples/{kind.script}", SCRIPT),
        **{part: sources[part] for part in kind.parts},
        TEST: _TEST.format(percent=promised_percent(script)),
        REQUIREMENTS: "".join(f"{line}\n" for line in requirements),
        README: readme,
        PROFILE: _PROFILE,
        IGNORED: _IGNORED,
    }
