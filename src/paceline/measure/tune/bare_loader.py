"""Read a dataset with a DataLoader and do nothing with its batches: ``paceline tune`` runs this.

``python -m paceline.measure.tune.bare_loader MODULE:DATASET BATCH_SIZE``, as a rank.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import Any

from paceline.errors import Finding, UsageError


def load(subject: str) -> Any:
    """Return the dataset that ``module:dataset`` names; a function or class is called."""
    from torch.utils.data import IterableDataset

    module_name, _, path = subject.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for name in path.split("."):
            value = getattr(value, name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UsageError(_unreadable(f"{subject} cannot be imported: {error}")) from error
    dataset = value() if callable(value) and not hasattr(value, "__getitem__") else value
    if isinstance(dataset, type):
        dataset = dataset()
    if not hasattr(dataset, "__getitem__") and not hasattr(dataset, "__iter__"):
        kind = type(dataset).__name__
        raise UsageError(_unreadable(f"{subject} is not a dataset but an object of type {kind}"))
    if not isinstance(dataset, IterableDataset) and len(dataset) == 0:
        raise UsageError(_unreadable(f"{subject} has no samples"))
    return dataset


def _unreadable(what: str) -> Finding:
    return Finding(
        "input-unreadable",
        what,
        evidence=("it is imported from the folder in which paceline tune was started",),
        fix="paceline tune mypackage.data:train_set, a Dataset or a function that returns one",
    )


def main(subject: str, batch_size: int) -> None:
    """Read batches until the process is ended."""
    from torch.utils.data import DataLoader, IterableDataset

    dataset = load(subject)
    shuffle = not isinstance(dataset, IterableDataset)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size, shuffle=shuffle)
    has_stepped = False
    for _ in itertools.count():
        for _batch in loader:
            if not has_stepped:
                _step()  # by which loader_trials recognises the loader
                has_stepped = True


def _step() -> None:
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    parameter.sum().backward()
    optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
