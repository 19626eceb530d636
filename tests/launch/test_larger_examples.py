"""The larger examples: ResNet-18 on CIFAR-10's files and a language model, from their files to their last line."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import http.server
import importlib.util
import io
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from starting import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
CIFAR, LANGUAGE_MODEL = EXAMPLES / "cifar10.py", EXAMPLES / "language_model.py"
ENVIRON = {"OMP_NUM_THREADS": "1"}

# In float64, so that what is printed does not show the order of sums.
SMALL_MODEL = (
    *("--limit", 120, "--context", 48, "--width", 16, "--layers", 2, "--epochs", 2),
    *("--precision", "64-true"),
)
SMALL_TRAINING = ("--small", "--save-every", 2)


def lines_of(ended):
    """Return the lines of epochs, and check that the command succeeded."""
    assert ended.status == 0, ended.err
    return re.findall(r"^epoch \d.*", ended.out, re.MULTILINE)


@pytest.mark.timeout(150)
def test_the_language_model_is_the_same_sharded_and_accumulated(command):
    one = command.start(LANGUAGE_MODEL, *SMALL_MODEL, program=sys.executable, env=ENVIRON)
    words = ("--batch-size", 16, "--accumulate", 4, "--strategy", "fsdp", "--recompute")
    two = command.run(
        *("--nproc-per-node", 2, LANGUAGE_MODEL, *SMALL_MODEL, *words), env=ENVIRON, timeout=100
    )
    expected = lines_of(one.wait(timeout=40))
    assert lines_of(two) == expected
    assert len(expected) == 2
    assert "2 layers of LanguageModel recompute" in two.err
    assert "Warning" not in two.err


def started(command, launcher, *words):
    """Start the CIFAR-10 example under a launcher on two ranks, or on one by plain python."""
    begin = {
        "python": (sys.executable,),
        "paceline": ("paceline", "--nproc-per-node", 2, "--run-dir", "runs-of-paceline"),
        "torchrun": ("torchrun", "--nproc-per-node", 2, "--master-port", free_port()),
    }
    program, *options = begin[launcher]
    return command.start(*options, CIFAR, *words, program=program, env=ENVIRON)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", ["python", "paceline", "torchrun"])
def test_cifar_learns_the_made_up_rule(command, launcher):
    ended = started(command, launcher, *SMALL_TRAINING, "--tensorboard").wait(timeout=270)
    epochs = lines_of(ended)
    assert len(epochs) == 6
    accuracy = float(re.search(r"accuracy ([\d.]+) % of 200$", epochs[-1])[1])
    assert accuracy > 50, "guessing is right in 10 %, the hue alone tells 20 %"
    folder = next(command.folder.glob("**/metrics.csv")).parent
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [float(row["test/accuracy"]) for row in rows][-1] == accuracy / 100
    assert float(rows[-1]["lr"]) == 0, "the cosine ends at 0"
    assert list((folder / "tensorboard").iterdir())
    saved = {path.name.partition("-")[2] for path in (folder / "checkpoints").glob("0*-step-*")}
    assert {"step-96", "step-64"} <= saved, "after every second epoch; the last two are kept"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cifar_stopped_and_resumed_ends_as_if_it_had_not_been(command):
    words = ("--nproc-per-node", 2, "--run-dir")
    short = (*SMALL_TRAINING, "--epochs", 4)
    whole = command.run(*words, "whole", CIFAR, *short, env=ENVIRON, timeout=120)
    stopped = command.start(*words, "parts", CIFAR, *short, env=ENVIRON)
    log = command.folder / "parts" / "logs" / "rank-000.out"
    deadline = time.monotonic() + 90
    while "epoch 1:" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stopped.signal(signal.SIGTERM)
    first = stopped.wait(timeout=90)
    assert first.status == 75, first.err
    second = command.run(*words, "parts", CIFAR, *short, env=ENVIRON, timeout=120)
    assert len(lines_of(whole)) == 4
    assert 1 <= len(lines_of(second)) <= 3
    assert lines_of(second)[-1] == lines_of(whole)[-1]


@pytest.fixture
def data():
    """The module of the example that downloads and reads, by its path."""
    spec = importlib.util.spec_from_file_location("cifar10_data", EXAMPLES / "cifar10_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def archive(data, tmp_path):
    """An archive like the official one, with 50 images in each file."""
    folder = data.prepare(tmp_path / "source", 250)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for path in sorted(folder.glob("*.bin")):
            tar.add(path, arcname=f"cifar-10-batches-bin/{path.name}")
    return content.getvalue()


@contextlib.contextmanager
def served(content):
    """Serve bytes at an address of this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
        server.shutdown()
        thread.join()


def test_an_archive_is_downloaded_once_checked_and_read(data, archive, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "MD5", hashlib.md5(archive).hexdigest())
    with served(archive) as url:
        monkeypatch.setattr(data, "URL", url)
        folder = data.prepare(tmp_path / "data")
    assert data.prepare(tmp_path / "data") == folder, "the server is gone by now"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*data.TRAIN, *data.TEST, "md5sums.txt"]
    )
    images, labels = data.read(folder, data.TRAIN)
    assert (images.shape, images.dtype) == ((250, 3, 32, 32), "uint8")
    assert labels[:50].tolist() == data.read(folder, data.TRAIN, 50)[1].tolist()
    assert sorted(set(labels.tolist())) == list(range(10))
    subprocess.run(["md5sum", "--check", "--quiet", "md5sums.txt"], cwd=folder, check=True)


def test_a_download_that_came_damaged_is_refused(data, archive, tmp_path, monkeypatch):
    with served(archive[:-1000]) as url:
        monkeypatch.setattr(data, "URL", url)
        with pytest.raises(data.DataError, match=r"bytes with MD5 .* instead of c32a1d4a"):
            data.prepare(tmp_path / "data")
    assert list((tmp_path / "data").glob("*/*")) == [], "nothing of it stays"


def test_without_a_network_it_says_what_to_do(data, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "URL", f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(data.DataError, match=r"Connection refused.*--synthetic 5000, or run"):
        data.prepare(tmp_path / "data")


def damage_a_pixel(path):
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)


def cut(path):
    path.with_name("md5sums.txt").unlink()
    path.write_bytes(path.read_bytes()[:-1])


def replace_by_a_page(path):
    path.with_name("md5sums.txt").unlink()
    path.write_bytes(b"<html>".ljust(3073, b" "))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (damage_a_pixel, "its MD5 sum is not the one in md5sums.txt"),
        (cut, "153,649 bytes are not records of 3,073"),
        (replace_by_a_page, "it has a label of 60"),
        (Path.unlink, "is missing"),
    ],
)
def test_damaged_files_are_refused(data, tmp_path, damage, text):
    folder = data.prepare(tmp_path, 250)
    damage(folder / "data_batch_3.bin")
    with pytest.raises(data.DataError, match=f"data_batch_3.bin .*{text}.* run again"):
        data.read(folder, data.TRAIN)
