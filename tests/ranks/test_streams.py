"""Streams of real libraries: shared out already or not, with workers or without, each sample counts once."""

import io
import tarfile

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from paceline import Session
from paceline.errors import PacelineError

datasets = pytest.importorskip("datasets")
webdataset = pytest.importorskip("webdataset")


@pytest.fixture(scope="module")
def tars(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tars")
    for shard in range(4):
        with tarfile.open(folder / f"{shard:02}.tar", "w") as archive:
            for number in range(6):
                text = str(shard * 6 + number).encode()
                entry = tarfile.TarInfo(f"{shard * 6 + number:03}.cls")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text))
    return str(folder / "{00..03}.tar")


def hugging_face(split, shuffled):
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    stream = Dataset.from_dict({"x": [float(number) for number in range(24)]}).to_iterable_dataset(
        num_shards=4
    )
    stream = stream.shuffle(seed=3, buffer_size=5) if shuffled else stream
    return split_dataset_by_node(stream, *split) if split else stream


def web(urls, split):
    import webdataset

    def as_sample(sample):
        return {"x": float(sample["cls"])}

    splitter = webdataset.split_by_node if split else list
    return webdataset.WebDataset(urls, nodesplitter=splitter, shardshuffle=False).map(as_sample)


class Shuffled(IterableDataset):
    """In another order on each rank, and none that anybody could see from outside."""

    def __iter__(self):
        import os

        numbers = torch.randperm(24, generator=torch.Generator().manual_seed(os.getpid()))
        return iter([{"x": float(number)} for number in numbers])


def read(kind, urls, trains, workers=0, sharded=None):
    session = Session(seed=0)
    session.setup(nn.Linear(1, 1))
    split = (session.rank, session.world_size) if kind == "split" else None
    stream = {
        "split": lambda: hugging_face(split, shuffled=False),
        "whole": lambda: hugging_face(None, shuffled=True),
        "web": lambda: web(urls, split=False),
        "web split": lambda: web(urls, split=True),
        "shuffled": Shuffled,
    }[kind]()
    kept = []
    try:
        size = {"per_rank_batch_size": 3} if sharded else {"batch_size": 6}
        loader = session.loader(stream, sharded=sharded, num_workers=workers, **size)
        with torch.set_grad_enabled(trains):
            for batch in loader:
                if loader.rows:
                    kept += batch["x"].tolist()
    except PacelineError as error:
        return error.finding.name
    return kept


@pytest.mark.parametrize("kind", ["split", "web split"])
def test_streams_that_a_library_has_shared_out(ranks, tars, kind):
    """As a whole they are refused on all ranks, before a sample is lost; as sharded ones they are complete."""
    assert (
        ranks.run(read, kind, tars, True, launched=True, world_size=2) == ["data-shared-twice"] * 2
    )
    parts = ranks.run(read, kind, tars, False, 0, True, launched=True, world_size=2)
    assert sorted(parts[0] + parts[1]) == list(range(24))
    assert sorted(ranks.run(read, kind, tars, False, world_size=1)[0]) == list(range(24)), (
        "one rank has all"
    )


@pytest.mark.parametrize("trains", [True, False])
def test_streams_in_another_order_on_each_rank(ranks, trains):
    found = ranks.run(read, "shuffled", "", trains, world_size=2)
    assert "data-shared-twice" in found


@pytest.mark.parametrize("kind", ["whole", "web"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_whole_streams_come_in_one_order(ranks, tars, kind, workers):
    """With any number of ranks and workers."""
    (expected,) = ranks.run(read, kind, tars, False, world_size=1)
    assert sorted(expected) == list(range(24))
    for world_size in (1, 2, 3):
        parts = ranks.run(read, kind, tars, False, workers, world_size=world_size)
        batches = [
            [part[number * 6 // world_size :][: 6 // world_size] for part in parts]
            for number in range(4)
        ]
        assert [each for batch in batches for part in batch for each in part] == expected


def map_style(trains):
    from datasets import Dataset

    session = Session(seed=0)
    whole = Dataset.from_dict({"x": [float(number) for number in range(24)]}).with_format("torch")
    mine = whole.shard(session.world_size, session.rank)
    loader = session.loader(mine, 6, num_workers=0)
    try:
        with torch.set_grad_enabled(trains):
            return [batch["x"].tolist() for batch in loader]
    except PacelineError as error:
        return error.finding.name


@pytest.mark.parametrize("trains", [True, False])
def test_a_map_style_shard_is_refused(ranks, trains):
    assert "data-not-shardable" in ranks.run(map_style, trains, world_size=2)
    (found,) = ranks.run(map_style, trains, world_size=1)
    assert [each for batch in found for each in batch] == list(range(24))
