"""The loader, and what it builds on: an epoch's order, each rank's share, and batches' weights.

loader            the loader: one loop for each epoch, batches on the device
loader_options    the options of a loader: what excludes what, and what is chosen if left open
context           what a loader needs of its session
sources           batches of a dataset or a stream, by torch's DataLoader
stream            which rank and worker gets which part of a stream
worker_streams    batches of a stream that divides itself among workers
adopt             which datasets, samplers and DataLoaders can be divided among ranks
order             the order of an epoch, from seed and epoch
sampler_order     the order that a user's sampler gives
share             which rank gets which sample
missing_rows      what a rank gets that has no row of a batch
same_data_check   whether ranks read the same data
iteration         the record of one loop over a loader
batch_tracker     which batch a loss belongs to
collation         batches of samples, and what their rows are
batch             batches on the way to the device; emptied and rebuilt
samples           the seed of each sample's random numbers, in any worker
generator_states  states of generators of Python, NumPy and torch
held_generators   generators that a dataset holds
counter_random    random numbers of many samples at once
row_random        random numbers for the rows of a batch: ``session.draws``
array_dataset     arrays in memory as a dataset, and their batches without a session
node_memory       arrays that the ranks of a node share
transforms        crop, flip and normalize whole batches
"""

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
