"""What the trials of a command overwrite, rename or delete is there again when the command has ended."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from paceline.launch.in_rank.kept_files import FileKeeper, records
from starting import inherited, paceline

SCRIPT = """
import os, shutil
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ["RANK"])
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
log = open("log.txt", "a")
if rank == 0:
    shutil.rmtree("old", ignore_errors=True)
    np.save("stats.npy", np.zeros(3))
    open("new.txt", "w").write("new")
step = 0
for epoch in range(20):
    for (x,) in DataLoader(TensorDataset(torch.randn(640, 8)), 32):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print(step, file=log, flush=True)
        if rank == 0:
            torch.save(model.state_dict(), "model.pt")
            torch.save(model.state_dict(), "written.tmp")
            os.replace("written.tmp", "best.pt")
            torch.save(f="by-name.pt", obj=model.state_dict())
            if os.path.lexists("latest"):
                os.remove("latest")
            os.symlink("model.pt", "latest")
"""
NEW = ("new.txt", "written.tmp")  # the second is there if a rank is ended within a save
BEFORE = {
    **{name: f"what was in {name}" for name in ("model.pt", "best.pt", "log.txt", "stats.npy")},
    "old/of-yesterday": "the only copy",
    "by-name.pt": "what was saved with keywords",
    "latest": "best.pt",
}


def contents(folder):
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in paths
        if path.name not in ("train.py", *NEW) and "paceline-runs" not in path.parts
    } | {"latest": os.readlink(folder / "latest")}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "old").mkdir()
    for name, text in BEFORE.items():
        if name == "latest":
            (tmp_path / name).symlink_to(text)
        else:
            (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "--world", "1,2", "--oversubscribe", "--steps", 12, "--rounds", 1, "train.py"),
        ("run", "--prove", "train.py"),
        pytest.param(("verify", "--steps", 30, "train.py"), marks=pytest.mark.slow),
        pytest.param(("tune", "--seconds", 15, "train.py"), marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_files_are_as_before(project, words):
    ended = paceline(project, *words)
    assert contents(project) == BEFORE, ended.stderr
    assert "paceline: files that the script changed are as before: " in ended.stderr
    assert "paceline: new files of the script: new.txt\n" in ended.stderr


def test_files_are_as_before_after_sigterm(project):
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "paceline",
            "bench",
            "--world",
            "1",
            "--steps",
            "200",
            "--rounds",
            "9",
            "train.py",
        ],
        cwd=project,
        env=inherited(),
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        deadline = time.monotonic() + 40
        while "what was" in (project / "model.pt").read_text(errors="replace"):
            assert time.monotonic() < deadline and child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        err = child.stderr.read()
    assert child.returncode == 128 + signal.SIGTERM, err
    assert contents(project) == BEFORE


@pytest.mark.skipif(sys.platform != "linux", reason="open folders have paths in /proc")
def test_each_way_to_change_a_file_is_heard_once(tmp_path):
    kept, folder = tmp_path / "kept", tmp_path / "work"
    keeper = FileKeeper(kept, (str(kept), "/dev/"))
    folder.mkdir()
    for name in "abcdef":
        (folder / name).write_text(name)
    (folder / "link").symlink_to("a")
    (folder / "inner").mkdir()
    (folder / "inner" / "g").write_text("g")
    handle = os.open(folder, os.O_RDONLY)
    try:
        keeper.hear("open", (str(folder / "a"), "r", os.O_RDONLY | os.O_CLOEXEC))
        assert records(kept) == []
        keeper.hear("open", (str(folder / "a"), "w", os.O_WRONLY | os.O_TRUNC))
        keeper.hear("open", (os.fsencode(folder / "b"), None, os.O_RDWR))
        keeper.hear("os.remove", ("c", handle))
        keeper.hear("os.rename", (str(folder / "d"), str(folder / "e"), -1, -1))
        keeper.hear("os.remove", (str(folder / "link"), -1))
        keeper.hear("os.rename", (str(folder / "inner"), str(folder / "elsewhere"), -1, -1))
        keeper.hear("os.truncate", (str(folder / "f"), 0))
        keeper.hear("open", (str(folder / "new"), "w", os.O_WRONLY))
        keeper.hear("open", (handle, "w", os.O_WRONLY))
        keeper.hear("open", ("/dev/null", "w", os.O_WRONLY))
        keeper.hear("open", (str(folder), None, os.O_RDWR))
        FileKeeper(kept, ()).hear("open", (str(folder / "new"), "w", os.O_WRONLY))  # another rank
    finally:
        os.close(handle)
    found = {os.path.basename(record["path"]): record["copy"] for record in records(kept)}
    assert list(found) == ["a", "b", "c", "d", "e", "link", "g", "elsewhere", "f", "new"]
    assert os.readlink(kept / found.pop("link")) == "a"
    copies = {name: (kept / copy).read_text() for name, copy in found.items() if copy}
    assert copies == {name: name for name in "abcdefg"}


def test_a_file_that_cannot_be_kept_is_not_overwritten(tmp_path, monkeypatch):
    def full(source, target, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copy2", full)
    (tmp_path / "model.pt").write_text("precious")
    keeper = FileKeeper(tmp_path / "kept", (str(tmp_path / "kept"),))
    with pytest.raises(OSError, match=r"would change \S+model.pt \(8 B\).*No space left"):
        keeper.hear("open", (str(tmp_path / "model.pt"), "w", os.O_WRONLY))
