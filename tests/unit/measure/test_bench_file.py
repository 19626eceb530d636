"""The file of a bench: what is written comes back, and anything else is refused by name."""

import json
from dataclasses import replace

import pytest

from paceline.errors import SetupError
from paceline.measure import bench_file
from paceline.measure.bench_file import BenchFile, WorldBench
from paceline.rundir.files import RunDir

STEPS = {12: {0: (1000, 2000, 3000, 4000, 5000, 6000), 1: (2000,) * 6}}
BENCH = BenchFile(
    command=("train.py", "--lr", "0.1"),
    scaling="weak",
    backend="gloo",
    warmup_steps=10,
    worlds={2: WorldBench(1, 128, {0: "node-a", 1: "node-a"}, [STEPS])},
    gradient_bytes=2704,
    bucket_bytes=(2000, 704),
)


def test_a_bench_comes_back_as_it_was_written(tmp_path):
    bench_file.write(BENCH, RunDir(tmp_path))
    assert bench_file.read(RunDir(tmp_path)) == BENCH
    secret = replace(BENCH, command=("train.py", "--token", "Ahidden"))
    bench_file.write(secret, RunDir(tmp_path))
    assert "hidden" not in RunDir(tmp_path).bench.read_text()
    assert bench_file.BenchFile.from_json(
        {**BENCH.to_json(), "command": secret.command}
    ).command == ("train.py", "--token", "..."), "nor is what an earlier version has written shown"


def test_the_file_has_the_fields_that_others_read(tmp_path):
    bench_file.write(BENCH, RunDir(tmp_path))
    values = json.loads((tmp_path / "bench.json").read_text())
    assert values["version"] == 1
    assert values["kind"] == "bench"
    assert values["worlds"]["2"]["rounds"][0]["12"]["0"] == [1, 2, 3, 4, 5, 6]
    assert values["worlds"]["2"]["hosts"] == {"0": "node-a", "1": "node-a"}


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"kind": "tune"}, {"scaling": "none"}, {"worlds": 3}, {"worlds": {"a": {}}}],
)
def test_another_file_is_refused(tmp_path, change):
    (tmp_path / "bench.json").write_text(json.dumps(BENCH.to_json() | change))
    with pytest.raises(SetupError, match="cannot be read as the result of a bench"):
        bench_file.read(RunDir(tmp_path))


def test_a_folder_without_a_bench_is_refused(tmp_path):
    with pytest.raises(SetupError, match="there is no such file"):
        bench_file.read(RunDir(tmp_path))
