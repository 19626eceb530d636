"""Read a checkpoint: describe it, check its files, and load its values."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.serialization import default_restore_location

from paceline.rundir import committed, manifest
from paceline.rundir.manifest import Saved, TensorInfo
from paceline.train.checkpoint import division, findings, folder, unpickling
from paceline.train.checkpoint.folder import damages

_CPU = torch.device("cpu")


def describe(path: Path) -> Saved:
    """Return a description of the checkpoint in the folder ``path``.

    Raises RunError if the checkpoint is damaged.
    """
    content = committed.read_manifest(path)
    if lines := damages(path, content.files, [unpickling.INDEX]):
        raise committed.damaged(path, lines)
    entries = unpickling.IndexReader(path).read_metadata().state_dict_metadata
    tensors = {
        name: TensorInfo(tuple(entry.size), _name(entry.properties.dtype))
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    return Saved(
        path=path,
        step=content.step,
        epoch=content.epoch,
        metric=content.metric,
        mode=content.mode,
        world_size=content.world_size,
        time_ns=content.time_ns,
        tensors=tensors,
        objects=frozenset(entries) - frozenset(tensors),
        files=content.files,
        run=content.run,
    )


def info(tensor: torch.Tensor) -> TensorInfo:
    """Return the shape and type of a tensor; of a sharded one, the global shape."""
    return TensorInfo(tuple(tensor.shape), _name(tensor.dtype))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def read(
    saved: Saved,
    into: Mapping[str, torch.Tensor],  # filled; plain or sharded, on any device
    others: Sequence[str],  # names of the entries to return
    *,
    device: torch.device = _CPU,  # target of those tensors inside objects that were on a GPU
    trust: bool = False,
) -> dict[str, Any]:
    """Read values of a checkpoint; not a collective. Tensors are on the CPU.

    ``trust`` is as for ``unpickling.load``.
    """
    fresh: dict[str, Any] = {name: _empty(saved.tensors.get(name)) for name in others}
    planner = _ReadPlanner({**into, **fresh}, device, trust=trust, where=str(saved.path))
    reader = unpickling.IndexReader(saved.path)
    metadata: Metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    planner.set_up_planner(planner.state_dict, metadata)
    with torch.no_grad():
        reader.read_data(planner.create_local_plan(), planner).wait()
    return {name: planner.state_dict[name] for name in others}


class _ReadPlanner(DefaultLoadPlanner):
    """Reads a flat state; loaded objects replace the placeholders under their names."""

    def __init__(
        self, state: dict[str, Any], device: torch.device, *, trust: bool, where: str
    ) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.state_dict = state
        self._device = str(device)
        self._trust, self._where = trust, where

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = unpickling.load(
            value, trust=self._trust, where=self._where, map_location=self._place
        )
        self.state_dict[read_item.dest_index.fqn] = loaded

    def _place(self, storage: Any, location: str) -> Any:
        # By default torch uses the GPU of the rank that saved, which this machine may not have.
        return storage if location == "cpu" else default_restore_location(storage, self._device)


def _empty(tensor: TensorInfo | None) -> torch.Tensor | None:
    return None if tensor is None else torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))


def check(saved: Saved, into: Mapping[str, torch.Tensor], beside: Collection[str] | None) -> None:
    """Compare a checkpoint with the state to load it into, see ``manifest.compare``.

    Raises UsageError if the checkpoint is of another model.
    """
    if lines := manifest.compare(
        saved, {name: info(tensor) for name, tensor in into.items()}, beside
    ):
        raise findings.other_model(saved, lines)


def check_files(saved: Saved, *, rank: int, world_size: int, where: str) -> None:
    """Check that all files exist, and that this rank's share of them is unchanged."""
    if not saved.path.is_dir():
        raise findings.not_shared(saved.path, blind=[where])
    lines = manifest.check_sizes(saved.files, folder.file_sizes(saved.path, saved.files))
    if not lines:
        lines = damages(
            saved.path, saved.files, division.share_files(saved.files, rank, world_size)
        )
    if lines:
        raise committed.damaged(saved.path, lines)
