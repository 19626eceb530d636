"""Data in memory, loaded in whole batches: the public names of ``paceline.train.data``."""

from paceline.train.data import (
    ArrayBatches,
    ArrayDataset,
    Normalize,
    RandomCrop,
    RandomFlip,
    RowRandom,
    SampleRandom,
    arrays,
)

__all__ = [
    "ArrayBatches",
    "ArrayDataset",
    "Normalize",
    "RandomCrop",
    "RandomFlip",
    "RowRandom",
    "SampleRandom",
    "arrays",
]
