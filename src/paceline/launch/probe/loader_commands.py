"""What ``paceline tune`` and a rank's DataLoader say to each other, through files of one folder.

``paceline tune`` writes a command; each rank looks for a new one when its training loop requests
a batch, and adds a record for every batch that it gets. Nobody waits for the other, so ranks that
see a command a few batches apart cannot block each other. Standard library only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Number of the command, when the batch was requested and when it came (monotonic clock, ns).
_RECORD = struct.Struct("@3q")
# Where batches come from: the loader as the script wrote it, the same batch again and again, or
# the loader with other settings.
WRITTEN, CACHED, CHANGED, END = "written", "cached", "changed", "end"


@dataclass(frozen=True)
class LoaderSetting:
    """Settings of a DataLoader that do not change its batches.

    Attributes:
        num_workers: Worker processes; 0 reads in the training process.
        prefetch_factor: Batches that each worker reads ahead; 0 without workers.
        pin_memory: Whether batches are copied to pinned memory.
        threads: Threads of the rank's CPU operations.
    """

    num_workers: int
    prefetch_factor: int
    pin_memory: bool
    threads: int


@dataclass(frozen=True)
class Command:
    """What a rank is to do from its next batch on.

    Attributes:
        number: Counts up from 1; 0 is a rank without a command.
        source: ``WRITTEN``, ``CACHED``, ``CHANGED``, or ``END`` to end the rank.
        setting: The settings to use, for ``CHANGED``.
    """

    number: int
    source: str
    setting: LoaderSetting | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the command as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Command:
        """Return the command from the data that ``to_json`` returned."""
        setting = values["setting"]
        return cls(
            values["number"], values["source"], LoaderSetting(**setting) if setting else None
        )


@dataclass(frozen=True)
class LoaderFacts:
    """What a rank sees of the DataLoader that its training loop reads.

    Attributes:
        setting: The settings as the script wrote them.
        persistent_workers: Whether the script keeps workers between epochs.
        batch_samples: Samples of a batch on this rank; 0 if they cannot be counted.
        batch_bytes: Bytes of the tensors of a batch.
        is_stream: Whether the dataset is an IterableDataset.
        on_gpu: Whether the rank uses a GPU.
        maker: The library that constructs the loader: ``transformers``, ``paceline``, or ``""``
            for the script.
        place: File and line of the script that construct the loader; empty if unknown.
    """

    setting: LoaderSetting
    persistent_workers: bool
    batch_samples: int
    batch_bytes: int
    is_stream: bool
    on_gpu: bool
    maker: str = ""
    place: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LoaderFacts:
        """Return the facts from the data that ``to_json`` returned."""
        return cls(**{**values, "setting": LoaderSetting(**values["setting"])})


@dataclass(frozen=True)
class Delivery:
    """A batch that the training loop of a rank got.

    Attributes:
        number: Number of the command that was followed.
        requested_ns: When the loop requested the batch, on the machine's monotonic clock.
        delivered_ns: When it got the batch.
    """

    number: int
    requested_ns: int
    delivered_ns: int

    def pack(self) -> bytes:
        """Return the record as bytes."""
        return _RECORD.pack(self.number, self.requested_ns, self.delivered_ns)


def unpack(data: bytes) -> Iterator[Delivery]:
    """Yield the records of a file, without one at its end that is not complete."""
    whole = len(data) - len(data) % _RECORD.size
    return (Delivery(*values) for values in _RECORD.iter_unpack(data[:whole]))


@dataclass(frozen=True)
class CommandFiles:
    """Names of the files.

    Attributes:
        folder: The folder that ``paceline tune`` has created.
    """

    folder: Path

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
