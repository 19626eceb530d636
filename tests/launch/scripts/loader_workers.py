"""DataLoader workers whose dataset, collate function and init function live in the script itself.

The argument is the start method: fork, spawn or forkserver.
"""

import os
import sys

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

LENGTH = 64
OFFSET = 1000


class Numbers(Dataset):
    offset = (
        0  # becomes OFFSET in the workers only: the sum then shows that their init function ran
    )

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return torch.tensor(index + self.offset)


def add_up(samples):
    return torch.stack(samples).sum()


def shift(worker_id):
    get_worker_info().dataset.offset = OFFSET


if __name__ == "__main__":
    loader = DataLoader(
        Numbers(),
        batch_size=8,
        num_workers=2,
        collate_fn=add_up,
        worker_init_fn=shift,
        multiprocessing_context=sys.argv[1],
    )
    total = sum(int(batch) for batch in loader)
    # every rank checks, one speaks: lines of two ranks on one pipe could mix
    assert total == sum(range(OFFSET, OFFSET + LENGTH)), total
    if os.environ["RANK"] == "0":
        print(f"sum {total}")
        print("workers ok")
