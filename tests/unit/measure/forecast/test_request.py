"""``paceline forecast``: what is typed, what is printed, and what is refused."""

import json

import pytest
from click.testing import CliRunner

from paceline.cli.main import cli
from paceline.errors import SetupError, UsageError
from paceline.measure.forecast.request import answer, world_sizes
from printed_json import read_json
from unit.measure.forecast.synthetic import Truth, bench, network


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The name of a run whose folder holds a bench."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "paceline-runs" / "bench-1", bench(network=network()))
    return "bench-1"


def write(folder, values):
    folder.mkdir(parents=True)
    (folder / "bench.json").write_text(json.dumps(values))


def test_world_sizes():
    assert world_sizes("2,16, 4") == [2, 16, 4]


@pytest.mark.parametrize(
    "words", ["1", "0", "two", "2,", "4;8", "9999999", "2.5", "-4", "1" * 5000]
)
def test_what_is_not_a_world_size_is_refused(words):
    with pytest.raises(UsageError, match="not a number of ranks"):
        world_sizes(words)


@pytest.mark.parametrize("options", [{"price": 2.0}, {"epochs": 3.0}])
def test_costs_need_samples(run, options):
    with pytest.raises(UsageError, match="has no effect without --samples"):
        answer(run, **options)


def test_samples_need_a_bench_that_counts_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = bench()
    for world in values["worlds"].values():
        world["samples_per_step"] = 0
    write(tmp_path / "uncounted", values)
    assert "batches/s" in answer("uncounted")
    with pytest.raises(UsageError, match="could not count the samples"):
        answer("uncounted", samples=1e6)


def test_the_newest_bench_is_taken_and_its_forecast_is_written_beside_it(run, tmp_path):
    folder = tmp_path / "paceline-runs" / run
    result = read_json("forecast", answer("", as_json=True, worlds="2,4"))
    assert [point["world"] for point in result["points"]] == [2, 4]
    assert json.loads((folder / "forecast.json").read_text()) == result
    assert answer(run) == answer(str(folder)) == answer(str(folder / "bench.json"))


@pytest.mark.parametrize("run_name", ["", "other", "empty", "train.py"])
def test_where_there_is_no_bench_it_says_so(tmp_path, monkeypatch, run_name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "train.py").touch()
    with pytest.raises(SetupError, match="input-unreadable"):
        answer(run_name)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"kind": "bench", "version": 2}', "\x00"]
)
def test_a_damaged_file_is_no_traceback(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "bench.json").write_text(content)
    with pytest.raises(SetupError, match="input-unreadable"):
        answer("damaged")


def test_a_network_is_read_from_files(run, tmp_path):
    (tmp_path / "slow.json").write_text(json.dumps(network(Truth(latency_s=5e-3))))
    slower = json.loads(answer(run, as_json=True, worlds="8", networks=["slow.json"]))
    usual = json.loads(answer(run, as_json=True, worlds="8"))
    assert slower["points"] != usual["points"]


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"kind": "bench", "version": 1}'])
def test_what_is_not_a_network_is_refused(run, tmp_path, content):
    if content is not None:
        (tmp_path / "network.json").write_text(content)
    with pytest.raises(SetupError, match="is not a measurement of the network"):
        answer(run, networks=["network.json"])


def test_costs_follow_from_throughput(run):
    options = {"samples": 1e6, "epochs": 90.0, "price": 2.5}
    result = json.loads(answer(run, as_json=True, worlds="8", **options))
    (point,), (cost,) = result["points"], result["costs"]
    assert cost["hours"] == pytest.approx(90e6 / point["samples_per_s"] / 3600)
    assert cost["gpu_hours"] == pytest.approx(8 * cost["hours"])
    assert cost["money"] == pytest.approx(2.5 * cost["gpu_hours"])
    assert cost["low_money"] < cost["money"] < cost["high_money"]


def test_the_table_has_a_row_for_each_size_and_says_where_scaling_ends(run):
    lines = answer(run).splitlines()
    assert lines[0] == "forecast of train.py --lr 0.1"
    ranks = [line.split()[0] for line in lines[3:16]]
    assert ranks == [
        "1",
        "2",
        "4",
        "8",
        "16",
        "32",
        "64",
        "128",
        "256",
        "512",
        "1,024",
        "2,048",
        "4,096",
    ]
    assert "another one brings less than half of itself" in answer(run) or "Do not scale" in answer(
        run
    )


@pytest.mark.parametrize(
    ("truth", "sentence"),
    [
        (Truth(bytes_per_s=1e6), "Do not scale: a second rank brings less than half of itself."),
        (
            Truth(bytes_per_s=1e12, latency_s=1e-9),
            "Up to 4,096 ranks, another one brings more than",
        ),
        (Truth(bytes_per_s=1e10, latency_s=1e-4), "ranks on, another one brings less than half"),
    ],
)
def test_the_verdict(tmp_path, monkeypatch, truth, sentence):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run", bench(truth, network=network(truth)))
    assert sentence in " ".join(answer("run").split())


def test_where_scaling_ends_is_a_bound_if_no_second_node_was_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    truth = Truth(bytes_per_s=1e9, latency_s=1e-3, buckets=(16 << 20,) * 4)
    write(tmp_path / "run", bench(truth, worlds=(1, 2, 4), one_node=True))
    assert "At the latest from 4 ranks on, another one brings less than half" in answer("run")


def test_lines_fit_into_80_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = bench(Truth(samples=5_000_000), worlds=(1, 2, 4), one_node=True)
    write(tmp_path / "run", {**values, "command": ["train.py", *["--option"] * 30]})
    text = answer("run", samples=1e12, epochs=90.0, price=2.5)
    assert max(map(len, text.splitlines())) <= 80
    assert "<= " in text


def test_the_command_prints_it(run, capsys):
    action = cli.main(["forecast", run, "--world", "8"], standalone_mode=False)
    assert action() == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[3:5]] == ["1", "8"]
    assert "It cannot know: other jobs on the network" in printed


@pytest.mark.parametrize("words", [["--samples", "-1"], ["--gpus-per-node", "0"], ["--price", "x"]])
def test_values_out_of_range_are_refused(words):
    assert CliRunner().invoke(cli, ["forecast", *words]).exit_code == 2
