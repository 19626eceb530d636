"""Data of other libraries: ``datasets``, webdataset, batches with a type of their own, samplers and streams."""

import io
import random
import tarfile

import datasets
import pytest
import torch
import webdataset
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from ranks import parity
from ranks.parity import WIDTH, net, rows

pytestmark = pytest.mark.ci

LIBRARIES = ()  # a fork after pyarrow was imported has hung once: each rank imports it itself


def regress(session, loader, pair=lambda batch: batch):
    """Train a small net on a loader; ``pair`` returns inputs and targets of a batch."""
    model = net()
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    x, y = rows()

    def loss_of(model, batch):
        inputs, targets = pair(batch)
        return nn.functional.mse_loss(model(inputs), targets)

    return parity.train(
        session,
        model,
        optimizer,
        loader,
        loss_of,
        watch=lambda model: nn.functional.mse_loss(model(x), y),
    )


def as_table():
    x, y = rows()
    return datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()}).with_format(
        "torch", dtype=torch.float64
    )


def by_name(batch):
    return batch["x"], batch["y"]


def hugging_face_map_style(folder):
    session = parity.session_of(folder)
    return regress(session, session.loader(as_table(), parity.BATCH, shuffle=True), by_name)


def hugging_face_in_a_dataloader(folder):
    """As their guide does it: a DataLoader around the dataset, with workers."""
    session = parity.session_of(folder)
    loader = DataLoader(
        as_table(), parity.BATCH, shuffle=True, num_workers=1, persistent_workers=True
    )
    return regress(session, session.loader(loader), by_name)


def stream_of(num_shards=4):
    """A stream has no format with a dtype, so that its samples are lists until they are collated."""
    table = as_table().with_format(None)
    return table.to_iterable_dataset(num_shards=num_shards).shuffle(seed=1, buffer_size=8)


def as_tensors(samples):
    return {
        name: torch.tensor([sample[name] for sample in samples], dtype=torch.float64)
        for name in ("x", "y")
    }


def hugging_face_stream(folder):
    session = parity.session_of(folder)
    return regress(
        session,
        session.loader(stream_of(), parity.BATCH, num_workers=0, collate_fn=as_tensors),
        by_name,
    )


def hugging_face_stream_with_a_worker(folder):
    session = parity.session_of(folder)
    return regress(
        session,
        session.loader(stream_of(), parity.BATCH, num_workers=1, collate_fn=as_tensors),
        by_name,
    )


def hugging_face_stream_with_chosen_workers(folder):
    """The number of workers is chosen by the CPUs that a rank has, which depend on the number of ranks."""
    session = parity.session_of(folder)
    return regress(
        session, session.loader(stream_of(), parity.BATCH, collate_fn=as_tensors), by_name
    )


def hugging_face_stream_split_by_node(folder):
    session = parity.session_of(folder)
    stream = split_dataset_by_node(stream_of(), rank=session.rank, world_size=session.world_size)
    return regress(session, session.loader(stream, parity.BATCH, num_workers=0), by_name)


def hugging_face_shard(folder):
    session = parity.session_of(folder)
    part = (
        as_table().select(range(36)).shard(session.world_size, session.rank)
    )  # as many on each rank
    return regress(session, session.loader(part, parity.BATCH), by_name)


def shards(folder):
    """Write shards as webdataset reads them, and return their names."""
    x, y = rows()
    names = [f"{folder}/{number}.tar" for number in range(3)]
    for number, name in enumerate(names):
        with tarfile.open(name, "w") as file:
            for index in range(number, parity.LENGTH, len(names)):
                content = io.BytesIO()
                torch.save((x[index].clone(), y[index].clone()), content)
                entry = tarfile.TarInfo(f"{index:04d}.pth")
                entry.size = content.tell()
                content.seek(0)
                file.addfile(entry, content)
    return names


def tar_stream(session, folder, nodesplitter):
    names = session.once(lambda: shards(folder))
    stream = webdataset.WebDataset(
        names, shardshuffle=False, nodesplitter=nodesplitter, workersplitter=None
    )
    return stream.decode().to_tuple("pth").map(lambda sample: sample[0])


def web_dataset_read_whole(folder):
    session = parity.session_of(folder)
    stream = tar_stream(session, folder, lambda source: source)
    return regress(session, session.loader(stream, parity.BATCH, num_workers=0))


def web_dataset_with_a_worker(folder):
    session = parity.session_of(folder)
    stream = tar_stream(session, folder, None)
    return regress(session, session.loader(stream, parity.BATCH, num_workers=1))


def web_dataset_split_by_node(folder):
    session = parity.session_of(folder)
    stream = tar_stream(session, folder, webdataset.split_by_node)
    return regress(session, session.loader(stream, parity.BATCH, num_workers=0))


class Numbers(IterableDataset):
    def __iter__(self):
        yield from zip(*rows(), strict=True)


def stream_with_workers(folder):
    session = parity.session_of(folder)
    return regress(session, session.loader(Numbers(), parity.BATCH, num_workers=2))


class Noisy(torch.utils.data.Dataset):
    """Augments with Python's and torch's random numbers."""

    def __len__(self):
        return parity.LENGTH

    def __getitem__(self, index):
        x, y = rows()
        return x[index] * random.uniform(0.9, 1.1) + 0.01 * torch.randn(WIDTH), y[index]


def augmented_by_workers(folder):
    session = parity.session_of(folder)
    return regress(session, session.loader(Noisy(), parity.BATCH, shuffle=True, num_workers=1))


def parts_of_datasets(folder):
    session = parity.session_of(folder)
    whole = TensorDataset(*rows())
    data = ConcatDataset([Subset(whole, range(20)), Subset(whole, range(20, parity.LENGTH))])
    return regress(session, session.loader(data, parity.BATCH, shuffle=True))


def weighted_sampler(folder):
    session = parity.session_of(folder)
    weights = torch.arange(1, parity.LENGTH + 1, dtype=torch.float64)
    sampler = WeightedRandomSampler(
        weights, parity.LENGTH, generator=torch.Generator().manual_seed(3)
    )
    return regress(session, session.loader(TensorDataset(*rows()), parity.BATCH, sampler=sampler))


class Buckets:
    """Batches of texts of one length, of different sizes, in a random order."""

    def __init__(self):
        self.epoch = 0
        self.buckets = [list(range(start, parity.LENGTH, 3)) for start in range(3)]

    def __len__(self):
        return sum(-(-len(bucket) // 4) for bucket in self.buckets)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        batches = [
            batch for bucket in self.buckets for batch in BatchSampler(bucket, 4, drop_last=False)
        ]
        random.Random(self.epoch).shuffle(batches)
        yield from batches


def bucketed_batches(folder):
    session = parity.session_of(folder)
    return regress(session, session.loader(TensorDataset(*rows()), batch_sampler=Buckets()))


def two_loaders(folder, *, weighted):
    """Side by side, in groups of batches; the shorter one's end is that of the last group."""
    session = parity.session_of(folder, accumulate=3)
    model = net()
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    x, y = rows()
    labelled = session.loader(TensorDataset(x[:20], y[:20]), parity.BATCH, shuffle=True)
    unlabelled = session.loader(TensorDataset(x[20:]), parity.BATCH, shuffle=True)
    losses = []
    for _ in session.epochs(2):
        for (inputs, targets), (others,) in zip(labelled, unlabelled, strict=False):
            supervised = nn.functional.mse_loss(
                model(torch.cat([inputs, others]))[: len(inputs)], targets
            )
            if session.backward(supervised, weight=len(inputs) if weighted else None):
                optimizer.step()
                optimizer.zero_grad()
                own = session.unwrap(model)
                losses.append(parity.watched(lambda own: nn.functional.mse_loss(own(x), y), own))
    return losses, parity.weights_of(session.unwrap(model))


def two_loaders_weighted(folder):
    return two_loaders(folder, weighted=True)


def two_loaders_unweighted(folder):
    return two_loaders(folder, weighted=False)


class Graphs:
    """A batch of graphs as torch_geometric makes them: nodes of all graphs in one tensor, and edges in another."""

    def __init__(self, samples):
        sizes = [len(nodes) for nodes, _, _ in samples]
        starts = torch.tensor([0, *sizes]).cumsum(0)
        self.x = torch.cat([nodes for nodes, _, _ in samples])
        self.edge_index = torch.cat(
            [edges + start for (_, edges, _), start in zip(samples, starts, strict=False)], 1
        )
        self.batch = torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(sizes))
        self.y = torch.stack([label for _, _, label in samples])
        self.num_graphs = len(samples)

    def to(self, device, **_):
        for name in ("x", "edge_index", "batch", "y"):
            setattr(self, name, getattr(self, name).to(device))
        return self


def graphs():
    generator = torch.Generator().manual_seed(9)
    found = []
    for _ in range(parity.LENGTH):
        size = int(torch.randint(2, 6, (1,), generator=generator))
        nodes = torch.randn(size, WIDTH, generator=generator, dtype=torch.float64)
        edges = torch.randint(0, size, (2, 2 * size), generator=generator)
        found.append((nodes, edges, nodes.square().mean().reshape(1)))
    return found


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.messages, self.head = nn.Linear(WIDTH, 6), nn.Linear(6, 1)

    def forward(self, graphs):
        source, target = graphs.edge_index
        sent = self.messages(graphs.x)
        nodes = torch.tanh(sent.index_add(0, target, sent[source]))
        pooled = nodes.new_zeros(graphs.num_graphs, nodes.shape[1]).index_add(
            0, graphs.batch, nodes
        )
        return self.head(pooled)


def graph_batches(folder):
    session = parity.session_of(folder)
    model = GraphNet()
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    loader = session.loader(graphs(), parity.BATCH, shuffle=True, collate_fn=Graphs)
    whole = Graphs(graphs())
    return parity.train(
        session,
        model,
        optimizer,
        loader,
        lambda model, batch: nn.functional.mse_loss(model(batch), batch.y),
        watch=lambda model: nn.functional.mse_loss(model(whole), whole.y),
    )


class Sequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(WIDTH, 6), nn.Linear(6, 1)

    def forward(self, packed):
        return self.head(self.gru(packed)[1][0])


def packed(samples):
    return (
        pack_sequence([nodes for nodes, _, _ in samples], enforce_sorted=False),
        torch.stack([label for _, _, label in samples]),
    )


def packed_sequences(folder):
    session = parity.session_of(folder)
    model = Sequences()
    model, optimizer = session.setup(model, torch.optim.AdamW(model.parameters(), lr=0.02))
    loader = session.loader(graphs(), parity.BATCH, shuffle=True, collate_fn=packed)
    x, y = packed(graphs())
    return parity.train(
        session,
        model,
        optimizer,
        loader,
        lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        watch=lambda model: nn.functional.mse_loss(model(x), y),
    )


def two_crops(samples):
    """A collate function that makes two rows of each sample: each rank still has two for each of its samples."""
    x, y = default_collate(samples)
    return torch.cat([x, 0.9 * x]), torch.cat([y, y])


def multi_crop(folder):
    session = parity.session_of(folder)
    return regress(
        session,
        session.loader(TensorDataset(*rows()), parity.BATCH, shuffle=True, collate_fn=two_crops),
    )


def without_broken(samples):
    """A collate function that leaves out samples, as those that could not be read."""
    return default_collate([(x, y) for x, y in samples if float(x[0]) < 0.7] or samples[:1])


def left_out_samples(folder):
    session = parity.session_of(folder)
    data = [*zip(*rows(), strict=True)]
    return regress(
        session, session.loader(data, parity.BATCH, shuffle=True, collate_fn=without_broken)
    )


def stateful_loader(folder):
    from torchdata.stateful_dataloader import StatefulDataLoader

    session = parity.session_of(folder)
    data = StatefulDataLoader(TensorDataset(*rows()), parity.BATCH, shuffle=True)
    return regress(session, session.loader(data))


class RandomNodeLoader(DataLoader):
    """torch_geometric's: a batch is the graph between its nodes, here a ring."""

    def __init__(self, num_nodes, **options):
        super().__init__(range(num_nodes), collate_fn=self.edges_between, **options)

    def edges_between(self, nodes):
        return [(node, node + 1) for node in nodes if node + 1 in nodes]


def graph_of_a_batch(folder):
    session = parity.session_of(folder)
    return regress(session, session.loader(RandomNodeLoader(parity.LENGTH, batch_size=3)))


SETUPS = [
    stateful_loader,
    hugging_face_map_style,
    hugging_face_in_a_dataloader,
    hugging_face_stream,
    hugging_face_stream_with_a_worker,
    hugging_face_stream_with_chosen_workers,
    web_dataset_read_whole,
    web_dataset_with_a_worker,
    stream_with_workers,
    augmented_by_workers,
    parts_of_datasets,
    weighted_sampler,
    bucketed_batches,
    two_loaders_weighted,
    graph_batches,
    packed_sequences,
    multi_crop,
]
REFUSED = {
    two_loaders_unweighted: "batch-weight-unknown",
    hugging_face_stream_split_by_node: "data-shared-twice",
    hugging_face_shard: "data-not-shardable",
    web_dataset_split_by_node: "data-shared-twice",
    graph_of_a_batch: "data-not-shardable",
    left_out_samples: "batch-weight-unknown",
}


@pytest.mark.parametrize(("setup", "world_size"), parity.cases(SETUPS))
def test_any_number_of_ranks_trains_what_one_would(
    library_ranks, alone, tmp_path, setup, world_size
):
    parity.check(parity.run(library_ranks, setup, tmp_path / "run", world_size), alone(setup))


@pytest.mark.slow  # a finding on one rank leaves the others in a collective until its timeout
@pytest.mark.parametrize(("setup", "world_size"), parity.cases(REFUSED))
def test_what_cannot_be_known_is_asked_for(library_ranks, tmp_path, setup, world_size):
    found = parity.run(library_ranks, setup, tmp_path / "run", world_size)
    assert parity.names_of(found) == {REFUSED[setup]}
