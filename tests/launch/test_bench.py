"""``paceline bench`` and the report of its result, on real scripts of every framework."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from faults.hosts import hosts, slow_loopback
from paceline.measure import bench_file
from paceline.rundir.files import RunDir
from printed_json import read_json
from starting import FRAMEWORKS, NEEDS, paceline

SCRIPTS = Path(__file__).parent / "scripts"
FAULTS = Path(__file__).parents[1] / "faults" / "scripts"
PROGRAMS = Path(__file__).parents[1] / "healthy" / "programs"
BRAKED = SCRIPTS / "braked.py"


def bench(folder, *words, before=()):
    """The JSON of a bench of one round on one and two ranks."""
    options = ("--world", "1,2", "--oversubscribe", "--steps", 24, "--rounds", 1, "--json")
    return read_json("bench", paceline(folder, "bench", *options, *words, before=before).stdout)


@pytest.mark.parametrize(
    ("brake", "name", "words", "findings"),
    [
        pytest.param("data", "data", "wait for data", ["data-bound"], id="data"),
        pytest.param(
            *("slow", "slow-rank", "waiting for rank 1", [""]), id="slow", marks=pytest.mark.slow
        ),
        # Which of the two a tiny step takes longer for depends on what else the machine does.
        pytest.param(
            *("tiny", "small-batch", "too little work in a step", ["", "communication-bound"]),
            id="tiny",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_brake_is_named(tmp_path, brake, name, words, findings):
    result = bench(tmp_path, BRAKED, brake)
    assert result["brake"]["name"] == name, result
    assert words in result["brake"]["sentence"]
    assert result["brake"]["finding"] in findings
    content = bench_file.read(RunDir(tmp_path / result["run_dir"]))
    assert sorted(content.worlds) == [1, 2]
    assert content.worlds[2].samples_per_step == 8
    assert content.gradient_bytes == 65 * 4
    assert min(content.worlds[1].rounds[0]) >= content.warmup_steps >= 2


@pytest.mark.namespaces
def test_a_slow_link_is_named(tmp_path):
    with hosts(1) as (host,):
        slow_loopback(host, "200mbit")
        result = bench(tmp_path, BRAKED, "link", before=host.inside([]))
    assert result["brake"]["name"] == "communication", result
    assert result["brake"]["finding"] == "communication-bound"
    assert "exchanging gradients of 6.5 MB" in result["brake"]["sentence"]


def script_of(framework):
    """A training of the project with enough steps for a trial on two ranks."""
    if framework == "transformers":
        text = (PROGRAMS / "transformers_trainer.py").read_text()
        return text.replace("num_train_epochs=2", "num_train_epochs=8")
    return (FAULTS / f"{framework}_train.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_is_measured_and_reported(tmp_path, framework):
    if importlib.util.find_spec(NEEDS.get(framework, framework)) is None:
        pytest.skip(f"{framework} is not installed")
    (tmp_path / "train.py").write_text(script_of(framework))
    result = bench(tmp_path, "train.py")
    rows = result["figures"]
    assert [(row["num_ranks"], row["samples_per_step"]) for row in rows] == [(1, 8), (2, 16)]
    assert set(rows[1]["parts"]) == {"data", "compute", "other code", "communication", "waiting"}
    assert min(rows[1]["parts"].values()) >= 0 < rows[1]["parts"]["compute"]
    assert result["gradient_bytes"] > 0
    run_dir = result["run_dir"]
    reported = read_json("report", paceline(tmp_path, "report", run_dir, "--json").stdout)["runs"][
        0
    ]
    assert [row["world"] for row in reported["scaling"]] == [1, 2]
    assert reported["scaling"][1]["efficiency"] == pytest.approx(rows[1]["efficiency"]["value"])
    assert "measured with 1 and 2 ranks" in paceline(tmp_path, "report", run_dir, "--text").stdout
    paceline(tmp_path, "report", run_dir)
    assert "Throughput by number of ranks" in (tmp_path / run_dir / "report.html").read_text()


OWN_BATCHES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_an_unknown_number_of_samples_is_said(tmp_path):
    (tmp_path / "train.py").write_text(OWN_BATCHES)
    result = bench(tmp_path, "train.py")
    assert [row["samples_per_s"] for row in result["figures"]] == [None, None]
    reported = paceline(tmp_path, "report", result["run_dir"], "--text").stdout
    assert "note: no scaling: the samples of a step are unknown" in " ".join(reported.split())


@pytest.mark.slow
def test_strong_scaling_keeps_the_batch_of_all_ranks(tmp_path):
    options = ("--scaling", "strong", "--batch-option", "{per_rank}")
    result = bench(tmp_path, *options, BRAKED, "none")
    assert result["scaling"] == "strong"
    assert [row["samples_per_step"] for row in result["figures"]] == [4, 4]
