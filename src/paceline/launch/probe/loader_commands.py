"""What ``paceline tune`` and a rank's DataLoader say to each other, through files of one folder.

``paceline tune`` writes a command; each rank looks for a new one when its training loop requests
a batch, and adds a record for every batch that it gets. Nobody waits for the other, so ranks that
see a command a few batches apart cannot block each other. Standard library only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Number of the command, when the batch was requested and when it came (monotonic clock, ns).
_RECORD = struct.Struct("@3q")
# Where batches come from: the loader as the script wrote it, the same batch again and again, or
# the loader with other settings.
WRITTEN, CACHED, CHANGED, END = "written", "cached", "changed", "end"


@dataclass(frozen=True)
class LoaderSetting:
    """Settings of a DataLoader that do not change its batches."""

    num_workers: int  # worker processes; 0 reads in the training process
    prefetch_factor: int  # batches that each worker reads ahead; 0 without workers
    pin_memory: bool  # whether batches are copied to pinned memory
    threads: int  # threads of the rank's CPU operations


@dataclass(frozen=True)
class LoaderCommand:
    """What a rank is to do from its next batch on."""

    number: int  # counts up from 1; 0 is a rank without a command
    source: str  # ``WRITTEN``, ``CACHED``, ``CHANGED``, or ``END`` to end the rank
    setting: LoaderSetting | None = None  # the settings to use, for ``CHANGED``


@dataclass(frozen=True)
class LoaderFacts:
    """What a rank sees of the DataLoader that its training loop reads."""

    setting: LoaderSetting  # the settings as the script wrote them
    persistent_workers: bool  # whether the script keeps workers between epochs
    batch_samples: int  # samples of a batch on this rank; 0 if they cannot be counted
    batch_bytes: int  # bytes of the tensors of a batch
    is_stream: bool  # whether the dataset is an IterableDataset
    on_gpu: bool  # whether the rank uses a GPU
    # the library that constructs the loader: ``transformers``, ``paceline``, or ``""`` for the
    # script
    maker: str = ""
    place: str = ""  # file and line of the script that construct the loader; empty if unknown


@dataclass(frozen=True)
class Delivery:
    """A batch that the training loop of a rank got."""

    number: int  # number of the command that was followed
    requested_ns: int  # when the loop requested the batch, on the machine's monotonic clock
    delivered_ns: int  # when it got the batch

    def pack(self) -> bytes:
        """Return the record as bytes."""
        return _RECORD.pack(self.number, self.requested_ns, self.delivered_ns)


def unpack(data: bytes) -> Iterator[Delivery]:
    """Yield the records of a file, without one at its end that is not complete."""
    whole = len(data) - len(data) % _RECORD.size
    return (Delivery(*values) for values in _RECORD.iter_unpack(data[:whole]))


@dataclass(frozen=True)
class CommandFiles:
    """Names of the files."""

    folder: Path  # the folder that ``paceline tune`` has created

    @property
    def command(self) -> Path:
        """The latest command (JSON)."""
        return self.folder / "command.json"

    def facts(self, local_rank: int) -> Path:
        """What a rank sees of its loader (JSON); it exists once the rank trains."""
        return self.folder / f"facts-{local_rank}.json"

    def deliveries(self, local_rank: int) -> Path:
        """The batches that a rank got (records)."""
        return self.folder / f"deliveries-{local_rank}"

    def failures(self, local_rank: int) -> Path:
        """Settings that did not work on a rank: number and message (JSON lines)."""
        return self.folder / f"failures-{local_rank}.jsonl"


def read_failures(lines: Iterable[str]) -> dict[int, str]:
    """Return the messages of failures by the number of their command."""
    entries = (json.loads(line) for line in lines if line.endswith("\n"))
    return {entry["number"]: entry["message"] for entry in entries}
