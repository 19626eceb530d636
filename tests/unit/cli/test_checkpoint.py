"""``paceline checkpoint list|verify|export``."""

from __future__ import annotations

import sys

import pytest
import torch

from paceline.cli import main as module
from paceline.errors import PacelineError
from paceline.train.checkpoint import Checkpoints, description
from paceline.world import World
from printed_json import read_json


@pytest.fixture
def run(tmp_path):
    """A run folder with two checkpoints."""
    here = Checkpoints(
        tmp_path / "runs" / "digits" / "checkpoints", world=World(), device=torch.device("cpu")
    )
    for step, metric in ((10, 0.9), (20, 0.5)):
        state = {
            "model/layer.weight": torch.full((2, 3), step),
            "model/count": torch.tensor(step),
            "session": {"a": 1},
        }
        here.save(
            {**state, "optimizer/0/w": torch.ones(9)},
            step=step,
            epoch=step // 10,
            metric=metric,
            wait=True,
        )
    here.close()
    return tmp_path / "runs" / "digits"


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run the command as typed; return its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)

    def ask(*words):
        deed = module.cli.main(
            ["checkpoint", *map(str, words)], prog_name="paceline", standalone_mode=False
        )
        try:
            status = deed()
        except PacelineError as error:
            print(error.finding.render(), file=sys.stderr)
            status = error.exit_status
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return ask


def damage(run):
    path = run / "checkpoints" / "00002-step-20" / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")


def test_list_shows_a_table(command, run):
    status, out, err = command("list", run)
    assert status == 0
    heading, first, second = out.splitlines()
    assert heading.split() == ["name", "step", "epoch", "metric", "ranks", "size", "age"]
    assert first.split()[:5] == ["00001-step-10", "10", "1", "0.9", "1"]
    assert first.endswith("best")
    assert second.endswith("latest")
    assert "2 checkpoints" in err


def test_list_prints_data(command, run):
    status, out, _ = command("list", run / "checkpoints", "--json")
    rows = read_json("checkpoint list", out)
    assert status == 0
    assert [(row["name"], row["metric"], row["latest"], row["best"]) for row in rows] == [
        ("00001-step-10", 0.9, False, True),
        ("00002-step-20", 0.5, True, False),
    ]
    size = sum(path.stat().st_size for path in (run / "checkpoints" / "00001-step-10").iterdir())
    assert 0 < size - rows[0]["bytes"] < 1000, "all but the manifest"


def test_list_takes_the_run_that_was_saved_last(command, run, tmp_path):
    assert command("list")[1] == command("list", run)[1]
    here = Checkpoints(
        tmp_path / "runs" / "a" / "checkpoints", world=World(), device=torch.device("cpu")
    )
    here.save({}, step=7, epoch=0, wait=True)
    assert "00001-step-7" in command("list")[1]
    assert "00001-step-10" in command("list", run / "checkpoints" / "00001-step-10")[1]


def test_list_shows_the_others_if_one_cannot_be_read(command, run):
    (run / "checkpoints" / "00001-step-10" / "manifest.json").write_text("")
    status, out, _ = command("list", run)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == ["name", "00002-step-20"]


def test_list_without_any_run_says_so(command, tmp_path):
    status, out, err = command("list")
    assert (status, out) == (2, "")
    assert "checkpoint-missing" in err
    assert command("list", tmp_path / "none")[0] == 2
    assert command("list", tmp_path, "--json")[:2] == (0, "[]\n")


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/00001-step-10"])
def test_verify_says_that_it_is_whole(command, run, place):
    status, out, _ = command("verify", run / place)
    assert status == 0
    assert out.startswith("whole: ")
    assert (
        read_json("checkpoint verify", command("verify", run / place, "--json")[1])["whole"] is True
    )


def test_verify_names_the_damage(command, run):
    damage(run)
    status, out, err = command("verify", run)
    assert (status, out) == (1, "")
    assert "checkpoint-damaged" in err
    assert "__0_0.distcp has the checksum" in err
    status, out, _ = command("verify", run, "--json")
    assert status == 1
    assert [finding["name"] for finding in read_json("checkpoint verify", out)["findings"]] == [
        "checkpoint-damaged"
    ]
    assert command("verify", run / "checkpoints" / "00001-step-10")[0] == 0


def test_verify_of_nothing_could_not_be_done(command, tmp_path):
    assert command("verify", tmp_path / "none")[0] == 2


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_export_writes_the_model_with_its_own_keys(command, run, tmp_path, suffix):
    outfile = tmp_path / f"model{suffix}"
    assert command("export", run, outfile)[0] == 0
    if suffix == ".pt":
        found = torch.load(outfile, weights_only=True)
    else:
        from safetensors.torch import load_file

        found = load_file(outfile)
    assert sorted(found) == ["count", "layer.weight"]
    assert found["layer.weight"].tolist() == [[20] * 3] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"model{suffix}", "runs"]


def test_export_of_one_checkpoint(command, run, tmp_path):
    command("export", run / "checkpoints" / "00001-step-10", tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt", weights_only=True)["count"] == 10


def test_export_refuses_what_is_damaged_and_writes_nothing(command, run, tmp_path):
    damage(run)
    status, _, err = command("export", run, tmp_path / "model.pt")
    assert status == 1
    assert "checkpoint-damaged" in err
    assert not (tmp_path / "model.pt").exists()


def test_export_without_safetensors_says_what_to_install(command, run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    status, _, err = command("export", run, tmp_path / "model.safetensors")
    assert status == 2
    assert "paceline[safetensors]" in err


def test_export_into_a_folder_that_is_not_there(command, run, tmp_path):
    status, _, err = command("export", run, tmp_path / "no" / "model.pt")
    assert status == 2
    assert "folder-not-writable" in err


def test_export_of_a_checkpoint_without_a_model(command, tmp_path):
    here = Checkpoints(tmp_path / "checkpoints", world=World(), device=torch.device("cpu"))
    here.save({"session": 1}, step=1, epoch=0, wait=True)
    status, _, err = command("export", tmp_path, tmp_path / "model.pt")
    assert status == 2
    assert "no model" in err


def test_other_state_of_a_model_needs_torch_save(command, tmp_path):
    here = Checkpoints(tmp_path / "checkpoints", world=World(), device=torch.device("cpu"))
    here.save(
        {"model/w": torch.ones(1), "model/_extra_state": {"a": 1}}, step=1, epoch=0, wait=True
    )
    assert command("export", tmp_path, tmp_path / "model.pt")[0] == 0
    assert torch.load(tmp_path / "model.pt", weights_only=True)["_extra_state"] == {"a": 1}
    status, _, err = command("export", tmp_path, tmp_path / "model.safetensors")
    assert status == 2
    assert "_extra_state" in err


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (15_700, "15.7 kB"),
        (999_600, "1 MB"),
        (1_250_000_000, "1.25 GB"),
    ],
)
def test_bytes_have_three_digits(count, text):
    assert description.render_bytes(count) == text


@pytest.mark.parametrize(
    ("age_s", "text"),
    [(-3, "now"), (0.4, "now"), (59, "59 s"), (60, "1 min"), (7300, "2 h"), (2e5, "2 d")],
)
def test_an_age_has_one_unit(age_s, text):
    assert description.render_age(age_s) == text
