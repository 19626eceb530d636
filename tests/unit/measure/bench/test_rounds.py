"""The trials of a bench: their order, what is left out, and sizes that fail."""

import json

import pytest

from paceline.errors import Finding, UsageError
from paceline.measure import trial
from paceline.measure.bench import command, rounds, table
from paceline.measure.bench.request import BenchRequest
from paceline.measure.trial import TrialResult
from paceline.rundir.files import RunDir

MS = 1_000_000
FAILED = Finding("trial-failed", "train.py on 2 ranks failed")


class Trials:
    """Stands in for ``trial.run``: 20 ms a step, 32 samples a rank, the first ten steps slow."""

    def __init__(self, *, failing=(), batch=None):
        self.failing, self.batch = failing, batch
        self.commands = []

    def run(self, one, tick):
        size = one.world_size
        self.commands.append((size, *one.command))
        RunDir(one.run_dir).create()
        RunDir(one.run_dir).plan().write_text(json.dumps({"backend": "gloo"}))
        checkpoints = RunDir(one.run_dir).checkpoints
        checkpoints.mkdir()
        tick()
        steps = {
            step: dict.fromkeys(range(size), (MS, MS, MS, 6 * MS, (11 if step > 9 else 90) * MS, 0))
            for step in range(2, one.steps)
        }
        return TrialResult(
            steps=steps,
            finding=FAILED if size in self.failing else None,
            samples_per_step=32 * size if self.batch is None else self.batch,
            hosts=dict.fromkeys(range(size), "node-a"),
            gradient_bytes=400,
            bucket_bytes=(400,),
            applied=("static_graph",),
        )


def measured(monkeypatch, tmp_path, request, **options):
    trials = Trials(**options)
    monkeypatch.setattr(trial, "run", trials.run)
    said = []

    def say(words):
        said.append(words)
        return lambda: None

    return rounds.measure(request, tmp_path, variables={}, say=say), trials, said


def test_sizes_take_turns_in_alternating_order(monkeypatch, tmp_path):
    request = BenchRequest(("train.py",), (1, 2), rounds=2)
    _, trials, said = measured(monkeypatch, tmp_path, request)
    assert [size for size, _ in trials.commands] == [1, 2, 2, 1]
    assert said[0] == "1 rank, round 1 of 2"
    assert list(tmp_path.glob("*/checkpoints")) == []


def test_slow_first_steps_are_left_out_of_every_round(monkeypatch, tmp_path):
    request = BenchRequest(("train.py",), (1, 2), rounds=3)
    result, _, _ = measured(monkeypatch, tmp_path, request)
    bench = rounds.to_bench(request, result, oversubscribed=False)
    assert bench.warmup_steps == 10
    assert {min(steps) for world in bench.worlds.values() for steps in world.rounds} == {10}
    assert [len(world.rounds) for world in bench.worlds.values()] == [3, 3]
    assert (bench.backend, bench.scaling, bench.gradient_bytes) == ("gloo", "weak", 400)
    assert rounds.has_settled(result)


def test_a_size_that_fails_is_not_tried_again(monkeypatch, tmp_path):
    request = BenchRequest(("train.py",), (1, 2, 4), rounds=3)
    result, trials, _ = measured(monkeypatch, tmp_path, request, failing=(2,))
    assert [size for size, _ in trials.commands].count(2) == 1
    assert sorted(result.results) == [1, 4]
    assert result.findings == {2: FAILED}


def test_a_script_that_divides_its_batch_itself_is_strong_scaling(monkeypatch, tmp_path):
    request = BenchRequest(("train.py",), (1, 2))
    result, _, _ = measured(monkeypatch, tmp_path, request, batch=64)
    assert rounds.to_bench(request, result, oversubscribed=False).scaling == "strong"


STRONG = BenchRequest(
    ("train.py",), (1, 2), rounds=2, scaling="strong", batch_option="--b={per_rank}"
)


def test_strong_scaling_divides_the_batch_of_the_fewest_ranks(monkeypatch, tmp_path):
    _, trials, _ = measured(monkeypatch, tmp_path, STRONG, batch=32)
    assert trials.commands == [
        (1, "train.py"),
        (2, "train.py", "--b=16"),
        (2, "train.py", "--b=16"),
        (1, "train.py", "--b=32"),
    ]


def test_a_batch_option_without_effect_is_refused(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match=r"with --b=16, train\.py takes 64 samples a step on 2"):
        measured(monkeypatch, tmp_path, STRONG)


def test_strong_scaling_needs_a_batch_that_is_seen(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="batch cannot be seen"):
        measured(monkeypatch, tmp_path, STRONG, batch=0)


def run_bench(monkeypatch, tmp_path, capsys, *, as_json=False, settings="", **options):
    monkeypatch.setattr(trial, "run", Trials(**options).run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    folder = tmp_path / "bench"
    request = BenchRequest(
        ("train.py",), (1, 2), rounds=2, oversubscribe=True, run_dir=folder, settings=settings
    )
    status = command.bench(request, as_json=as_json)
    return status, capsys.readouterr().out


def test_the_result_fits_80_columns(monkeypatch, tmp_path, capsys):
    status, text = run_bench(monkeypatch, tmp_path, capsys)
    assert status == 0
    head = text.split("run folder")[0]
    assert max(map(len, head.splitlines())) <= table.COLUMNS
    assert "warm-up: the first 10 steps of each round are left out" in text
    assert "    2       3,200 (3,200-3,200)        20     2.00x  100% (100%-100%)" in text


def test_json_has_the_figures_and_the_findings(monkeypatch, tmp_path, capsys):
    status, text = run_bench(monkeypatch, tmp_path, capsys, as_json=True, failing=(2,))
    values = json.loads(text)
    assert status == 1
    assert [figures["num_ranks"] for figures in values["figures"]] == [1]
    assert values["figures"][0]["samples_per_s"]["value"] == pytest.approx(1600)
    assert values["findings"][0]["name"] == "trial-failed"
    assert json.loads((tmp_path / "bench" / "bench.json").read_text())["kind"] == "bench"


def test_a_folder_with_another_bench_is_refused(monkeypatch, tmp_path, capsys):
    run_bench(monkeypatch, tmp_path, capsys)
    with pytest.raises(UsageError, match="has the trials of another bench"):
        run_bench(monkeypatch, tmp_path, capsys)


def test_settings_have_a_table_that_fits_80_columns(monkeypatch, tmp_path, capsys):
    _, text = run_bench(monkeypatch, tmp_path, capsys, settings="static-graph,bf16-hook")
    head = text.split("run folder")[0]
    assert max(map(len, head.splitlines())) <= table.COLUMNS
    assert "static-graph" in text
    assert "+0% (+0% to +0%)" in text
    assert "no setting is faster" in text
    assert "not judged: bf16-hook" in text
    assert "calculated, not measured: accumulate-4" in text
    saved = json.loads((tmp_path / "bench" / "bench.json").read_text())["settings"]
    assert [setting["name"] for setting in saved] == ["static-graph", "bf16-hook", "accumulate-4"]


def test_an_unknown_setting_is_refused_before_anything_runs(monkeypatch, tmp_path, capsys):
    with pytest.raises(UsageError, match="--settings has no setting"):
        run_bench(monkeypatch, tmp_path, capsys, settings="static-graf")
    assert not (tmp_path / "bench").exists()


def test_a_script_that_does_not_exist_is_refused_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no file nosuch\.py"):
        command.bench(BenchRequest(("nosuch.py",), (1,)), as_json=False)
    assert list(tmp_path.iterdir()) == []


def test_the_tasks_of_a_slurm_step_do_not_measure_each_other(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(UsageError, match="one of 4 Slurm tasks"):
        command.bench(BenchRequest(("train.py",), (1,)), as_json=False)
