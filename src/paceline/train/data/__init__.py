"""The loader, and what it builds on: an epoch's order, each rank's share, and batches' weights."""

from paceline.train.data.array_dataset import ArrayBatches, ArrayDataset, arrays
from paceline.train.data.batch import (
    can_be_emptied,
    is_of_rows,
    parts_of_batch,
    rebuilt,
    selected,
    to_device,
)
from paceline.train.data.batch_tracker import BatchTracker, not_of_samples
from paceline.train.data.context import LoaderContext
from paceline.train.data.counter_random import SampleRandom
from paceline.train.data.generator_states import (
    device_random_state,
    numpy_memory,
    python_memory,
    seed_device,
    set_device_random_state,
)
from paceline.train.data.iteration import Iteration
from paceline.train.data.loader import Loader
from paceline.train.data.loader_options import adopted
from paceline.train.data.order import derive
from paceline.train.data.row_random import RowRandom
from paceline.train.data.share import Rows, in_order
from paceline.train.data.transforms import Normalize, RandomCrop, RandomFlip

__all__ = [
    "ArrayBatches",
    "ArrayDataset",
    "BatchTracker",
    "Iteration",
    "Loader",
    "LoaderContext",
    "Normalize",
    "RandomCrop",
    "RandomFlip",
    "RowRandom",
    "Rows",
    "SampleRandom",
    "adopted",
    "arrays",
    "can_be_emptied",
    "derive",
    "device_random_state",
    "in_order",
    "is_of_rows",
    "not_of_samples",
    "numpy_memory",
    "parts_of_batch",
    "python_memory",
    "rebuilt",
    "seed_device",
    "selected",
    "set_device_random_state",
    "to_device",
]
