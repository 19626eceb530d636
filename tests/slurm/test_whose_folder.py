"""Arrays, and job scripts that are submitted twice: each training has its folder, and one living run owns it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm
SCRIPT = Path(__file__).parents[1] / "launch" / "scripts" / "whose_folder.py"
LINE = re.compile(r"fold 0 lr (\S+): (\d+) steps made here, weight (\S+)")


def batch(site, lines, *options):
    """Submit a job script by plain sbatch; return the job's number."""
    path = site.folder / "job.sh"
    path.write_text("#!/bin/bash\n" + lines)
    ended = site.run(
        "sbatch", "--parsable", f"--job-name={site.mark}", "--output=out-%a-%j.txt", *options, path
    )
    assert ended.status == 0, ended.err
    return ended.out.strip().partition(";")[0]


def outputs(site):
    return [path.read_text() for path in sorted(site.folder.glob("out-*.txt"))]


@pytest.fixture
def script(site):
    (site.folder / "train.py").write_text(SCRIPT.read_text())


def wait(site, count, pattern, timeout=90):
    until = time.monotonic() + timeout
    while sum(bool(re.search(pattern, text)) for text in outputs(site)) < count:
        assert time.monotonic() < until, outputs(site)
        time.sleep(0.2)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("start", ["python", "srun python"])
def test_elements_of_an_array_are_trainings_of_their_own(site, script, start):
    rates = "rates=(0.1 0.05 0.02 0.01)\n"
    batch(site, rates + start + " train.py --lr ${rates[$SLURM_ARRAY_TASK_ID]}\n", "--array=0-3%2")
    wait(site, 4, LINE)
    found = [LINE.search(text).groups() for text in outputs(site)]
    assert {steps for _, steps, _ in found} == {"3"}
    assert len({weight for _, _, weight in found}) == 4


@pytest.mark.timeout(180)
def test_an_array_in_one_folder_is_refused_but_the_first(site, script):
    batch(site, "srun paceline run --run-dir fixed train.py\necho ended $?\n", "--array=0-1%1")
    wait(site, 2, "ended ")
    first, second = outputs(site)
    assert "ended 0" in first, first
    assert "ended 2" in second, second
    assert re.search(r"fixed belongs to element 0 of array \d+, this is element 1 of array", second)


@pytest.mark.timeout(180)
def test_a_job_script_that_is_submitted_twice_ends_with_the_name_of_the_first(site, script):
    first = batch(site, "srun python train.py --epochs 40 --nap 1\necho ended $?\n")
    until = time.monotonic() + 90
    while not list(site.folder.glob("paceline-runs/*/checkpoints/*")):
        assert time.monotonic() < until, outputs(site)
        time.sleep(0.2)
    second = batch(site, "srun python train.py --epochs 40 --nap 1\necho ended $?\n")
    wait(site, 1, "ended 2")
    (path,) = site.folder.glob(f"out-*-{second}.txt")
    text = path.read_text()
    assert f"is in use by job {first}" in text
    assert f"scancel {first}" in text
    site.cluster.ask("scancel", first)
