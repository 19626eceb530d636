"""Experiment trackers without a network: what was logged is there, in one run over all starts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import paceline
from paceline import env
from paceline.errors import SetupError, UsageError
from paceline.rundir.files import RunDir
from paceline.train.logging import MLflowLogger, TrackioLogger, WandbLogger
from paceline.train.session.run_folder import reset

IMAGE = torch.linspace(0, 1, 3 * 4 * 5).view(3, 4, 5)


@pytest.fixture(autouse=True)
def unlaunched(monkeypatch, tmp_path):
    for variable in env.variables():
        if variable.name not in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])


class Memory:
    """A logger of a user's, with all methods."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: self.calls.append((name, *arguments))


def start(logger, *steps):
    """A start of a training run in one folder: logs a number at some steps, and ends."""
    reset()
    session = paceline.Session(run_dir="run", loggers=[logger])
    session.log_hyperparameters({"lr": 0.1, "layers": 2})
    for step in steps:
        session.log({"val/loss": 1 / (1 + step), "acc %": 50.0}, step=step)
    session.log({"sample": IMAGE, "gray": IMAGE[:1], "note": "first words"}, step=steps[-1])
    session._loggers.close()


def names_of_run():
    return json.loads(RunDir(Path("run")).trackers.read_text())


def test_values_go_where_they_belong():
    target = Memory()
    session = paceline.Session(loggers=[target])
    session.log({"a": 1, "b": torch.tensor([2.0]), "text": "words", "image": IMAGE}, step=3)
    kinds = {name: arguments for name, *arguments in target.calls}
    assert kinds["log"] == [{"a": 1.0, "b": 2.0}, 3]
    assert kinds["log_text"] == ["text", "words", 3]
    name, array, step = kinds["log_image"]
    assert (name, array.shape, str(array.dtype), step) == ("image", (4, 5, 3), "uint8", 3)
    assert array[0, 0, 0] == 0
    assert array[-1, -1, -1] == 255


@pytest.mark.parametrize(
    ("image", "shape"),
    [
        (torch.zeros(1, 4, 5), (4, 5, 1)),
        (torch.zeros(7, 5, 3), (7, 5, 3)),
        (torch.zeros(3, 4, 3), (4, 3, 3)),
        (torch.zeros(4, 5, 3).numpy(), (4, 5, 3)),  # 4 rows, of an array
        (torch.zeros(3, 4, 5, dtype=torch.uint8), (4, 5, 3)),
    ],
)
def test_images_of_either_order(image, shape):
    target = Memory()
    paceline.Session(loggers=[target]).log({"image": image})
    assert target.calls[-1][2].shape == shape


def test_what_is_no_value_is_refused_by_name():
    session = paceline.Session()
    for value in (torch.zeros(3), [1, 2], torch.zeros(2, 2)):
        with pytest.raises(UsageError, match="scores"):
            session.log({"scores": value})


def test_a_logger_without_images_is_said_once(capsys):
    session = paceline.Session()
    for _ in range(2):
        session.log({"sample": IMAGE})
    assert capsys.readouterr().err.count("no logger takes images") == 1


def test_a_single_logger_needs_no_list():
    session = paceline.Session(loggers="csv", run_dir="run")
    session.log({"loss": 1.0})
    assert (Path("run") / "metrics.csv").exists()


def test_an_unknown_name_is_refused_with_the_closest():
    with pytest.raises(UsageError) as error:
        paceline.Session(loggers=["wanb"])
    assert error.value.finding.fix == 'loggers=["wandb"]'


@pytest.mark.parametrize(
    ("logger", "package"),
    [(WandbLogger, "wandb"), (MLflowLogger, "mlflow"), (TrackioLogger, "trackio")],
)
def test_a_tracker_that_is_not_installed(monkeypatch, logger, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError) as error:
        logger()
    assert error.value.finding.fix == f'pip install "paceline[{package}]"'


def test_tensorboard_takes_images_texts_and_hyperparameters():
    start("tensorboard", 0, 1)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator("run/tensorboard")
    read.Reload()
    tags = read.Tags()
    assert tags["images"] == ["sample", "gray"]
    assert {tag.partition("/")[0] for tag in tags["tensors"]} == {"note", "hyperparameters"}


@pytest.mark.slow
def test_trackio_keeps_one_run(monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    start("trackio", 0, 1)
    start("trackio", 1, 2)
    (run,) = SQLiteStorage.get_runs("train")
    assert run == names_of_run()["trackio"]
    logs = SQLiteStorage.get_logs("train", run)
    losses = [(log["step"], log["val/loss"]) for log in logs if "val/loss" in log]
    assert losses == [(0, 1.0), (1, 0.5), (1, 0.5), (2, 1 / 3)]
    assert sum("sample" in log for log in logs) == 2
    assert sum("gray" in log for log in logs) == 2
    assert SQLiteStorage.get_run_config("train", run)["lr"] == 0.1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library, at its import
def test_mlflow_keeps_one_run(monkeypatch, tmp_path):
    tracking = pytest.importorskip("mlflow.tracking")
    uri = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    start("mlflow", 0, 1)
    start("mlflow", 1, 2)
    client = tracking.MlflowClient(uri)
    experiment = client.get_experiment_by_name("train")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == names_of_run()["mlflow"]
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1", "layers": "2"}
    points = client.get_metric_history(run.info.run_id, "val/loss")
    assert [(point.step, point.value) for point in points] == [
        (0, 1.0),
        (1, 0.5),
        (1, 0.5),
        (2, 1 / 3),
    ]
    assert run.data.metrics["acc _"] == 50.0  # MLflow takes no %
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"images", "note"} <= files


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library, at its import
def test_wandb_keeps_one_run_offline(monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    start("wandb", 0, 1)
    start("wandb", 1, 2)
    wandb.teardown()
    run = names_of_run()["wandb"]
    folders = [path.name for path in (tmp_path / "run" / "wandb").glob("offline-run-*")]
    assert len(folders) == 2
    assert all(name.endswith(f"-{run}") for name in folders)
    media = (tmp_path / "run" / "wandb").glob("offline-run-*/files/media/*/*")
    assert {path.name.partition("_")[0] for path in media} == {"sample", "gray", "note"}


FAKE_WANDB = """
import atexit, types

class Run:
    config = {}
    alive = True
    def define_metric(self, *names, **options): pass
    def log(self, values): pass
    def finish(self):
        if not self.alive:
            raise ConnectionResetError("Connection lost")
        print("finished")
    def end(self):
        self.alive = False

def setup():
    return types.SimpleNamespace(settings=types.SimpleNamespace(project=None))

def init(**options):
    run = Run()
    atexit.register(run.end)
    return run
"""


def end_of_script(folder, ending):
    """Run a script that logs to wandb; return its exit status and the words of its output."""
    script = folder / "train.py"
    script.write_text(
        "import paceline\nsession = paceline.Session(loggers=['wandb'], run_dir='run')\n"
        f"session.log({{'loss': 1.0}})\nprint('logged', flush=True)\n{ending}\n"
    )
    ended = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True)
    return ended.returncode, ended.stdout.split()


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("", (0, ["logged", "finished"])),
        ("raise ValueError", (1, ["logged"])),  # wandb then notes the failure itself
    ],
)
def test_a_run_of_wandb_ends_before_its_service(tmp_path, ending, expected):
    (tmp_path / "wandb.py").write_text(FAKE_WANDB)
    assert end_of_script(tmp_path, ending) == expected


@pytest.mark.slow
def test_a_script_with_wandb_succeeds(monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert end_of_script(tmp_path, "") == (0, ["logged"])
