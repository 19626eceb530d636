"""CIFAR-10 in its official binary files: download, check and read them.

    python examples/cifar10_data.py data                    # 162 MB, on a node with a network
    python examples/cifar10_data.py data --synthetic 5000   # made up, in the same format

A file has records of 3,073 bytes: the label, then planes of 32 x 32 red, green and blue pixels.
"""

import argparse
import hashlib
import os
import sys
import tarfile
import urllib.request
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TimeRemainingColumn

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # from https://www.cs.toronto.edu/~kriz/cifar.html
TIMEOUT_S = 30  # without a byte
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
SUMS = "md5sums.txt"  # written last; `md5sum -c md5sums.txt` checks the files too
SHAPE, NUM_CLASSES = (3, 32, 32), 10
RECORD_BYTES = 1 + 3 * 32 * 32


class DataError(Exception):
    """The data cannot be downloaded, or is damaged; the text says what to do."""


def prepare(parent, num_synthetic=0):
    """Return the folder with the files; download or write them if they are not there.

    Call it in one process of each node, as ``session.once(..., scope="node")`` does. Nodes with a
    shared disk may do the same work, but never see a part of a file.

    Args:
        parent: Where the folder is or will be.
        num_synthetic: Training images to make up instead, a multiple of 5; a fifth for the test.
    """
    if num_synthetic:
        folder = Path(parent) / f"synthetic-{num_synthetic}"
        get = write_synthetic
    else:
        folder = Path(parent) / "cifar-10-batches-bin"  # as the official archive calls it
        get = download
    is_there = all((folder / name).exists() for name in TRAIN + TEST)
    if not is_there:  # perhaps extracted by hand, so without our checksums
        folder.mkdir(parents=True, exist_ok=True)
        get(folder, num_synthetic)
    return folder


def read(folder, names, limit=None):
    """Return images, bytes of shape ``[samples, 3, 32, 32]``, and labels, integers ``[samples]``.

    Raises:
        DataError: A file is missing, damaged, or not in the format.
    """
    records = np.concatenate([records_of(folder / name) for name in names])[:limit]
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0].astype(np.int64)


def records_of(path):
    """Return a checked file as an array of shape ``[records, 3073]``."""
    again = f"remove the folder {path.parent} and run again"
    if not path.exists():
        raise DataError(f"{path} is missing: {again}")
    content = path.read_bytes()
    sums = path.parent / SUMS
    lines = sums.read_text().splitlines() if sums.exists() else []
    known = dict(line.split()[::-1] for line in lines)
    if path.name in known and hashlib.md5(content).hexdigest() != known[path.name]:
        raise DataError(f"{path} is damaged, its MD5 sum is not the one in {SUMS}: {again}")
    if not content or len(content) % RECORD_BYTES:
        size = f"{len(content):,} bytes are not records of {RECORD_BYTES:,}"
        raise DataError(f"{path} is damaged or not CIFAR-10's binary version, {size}: {again}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, RECORD_BYTES)
    if records[:, 0].max() >= NUM_CLASSES:
        raise DataError(f"{path} is damaged, it has a label of {records[:, 0].max()}: {again}")
    return records


def download(folder, _=0):
    """Download the archive, check it, and extract its files into a folder."""
    archive = folder / f"archive-{os.uname().nodename}-{os.getpid()}.part"  # of this process alone
    try:
        sum_of_archive = fetch(URL, archive)
        if sum_of_archive != MD5:
            what = f"{archive.stat().st_size:,} bytes with MD5 {sum_of_archive} instead of {MD5}"
            raise DataError(f"{URL} came damaged, {what}: run again, or see what a proxy answers")
        with tarfile.open(archive) as tar:
            files = {Path(member.name).name: member for member in tar if member.isfile()}
            write_all(folder, {name: tar.extractfile(files[name]).read() for name in TRAIN + TEST})
    except OSError as error:
        raise DataError(
            f"cannot download {URL}: {error}. Without a network: --synthetic 5000, or run"
            f" `python cifar10_data.py {folder.parent}` where there is one, and copy {folder}"
        ) from error
    finally:
        archive.unlink(missing_ok=True)


def fetch(url, path):
    """Write what an address has to a file, and return its MD5 sum."""
    columns = (*Progress.get_default_columns()[:2], DownloadColumn(), TimeRemainingColumn())
    console, digest = Console(stderr=True), hashlib.md5(usedforsecurity=False)
    with (
        urllib.request.urlopen(url, timeout=TIMEOUT_S) as response,
        open(path, "wb") as file,
        Progress(*columns, console=console, disable=not sys.stderr.isatty()) as progress,
    ):
        total = int(response.headers.get("Content-Length", 0)) or None
        task = progress.add_task("CIFAR-10", total=total)
        while chunk := response.read(1 << 20):
            file.write(chunk)
            digest.update(chunk)
            progress.advance(task, len(chunk))
    return digest.hexdigest()


def write_synthetic(folder, num_train):
    """Write made-up images: the class is the hue and whether stripes are level or upright."""
    if num_train < NUM_CLASSES or num_train % len(TRAIN):
        raise DataError(f"--synthetic {num_train}: a multiple of 5 from 10 on, such as 5000")
    files, random = {}, np.random.default_rng(0)
    for name in TRAIN + TEST:
        labels = random.permutation(np.arange(num_train // len(TRAIN)) % NUM_CLASSES)
        files[name] = np.column_stack([labels, made_up(labels, random)]).astype(np.uint8).tobytes()
    write_all(folder, files)


def made_up(labels, random):
    """Return the pixels of images, integers from 0 to 255 of shape ``[samples, 3072]``."""
    phase, pixel = random.uniform(0, 2 * np.pi, (len(labels), 1, 1, 1)), np.arange(32)
    upright = (labels % 2).astype(bool)[:, None, None, None]
    stripes = np.sin(phase + 0.9 * np.where(upright, pixel, pixel[:, None]))
    hue = (labels // 2)[:, None] / 5 + np.arange(3) / 3  # of the three planes
    colour = np.cos(2 * np.pi * hue)[:, :, None, None]
    noise = random.normal(0, 40, (len(labels), *SHAPE))
    return np.clip(128 + 40 * stripes + 25 * colour + noise, 0, 255).reshape(len(labels), -1)


def write_all(folder, files):
    """Write files and their MD5 sums, each under its name only when it is whole."""
    sums = "".join(f"{hashlib.md5(files[name]).hexdigest()}  {name}\n" for name in files)
    for name, content in {**files, SUMS: sums.encode()}.items():
        part = folder / f"{name}-{os.uname().nodename}-{os.getpid()}.part"
        part.write_bytes(content)
        part.replace(folder / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parent", type=Path, help="where the folder with the files will be")
    parser.add_argument("--synthetic", type=int, default=0, metavar="N", help="make up N images")
    args = parser.parse_args()
    try:
        print(prepare(args.parent, args.synthetic))
    except DataError as error:
        sys.exit(f"cifar10_data.py: {error}")
