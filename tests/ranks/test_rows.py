"""Rows as the loader counts them, and ranks without a row: what they compute, and what of it counts."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from paceline import Module, Session, Trainer
from paceline.errors import PacelineError

pytestmark = pytest.mark.ci

SEVERAL = (2, 3, 4)


def regression(length, width=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(length, width, generator=generator, dtype=dtype)
    return TensorDataset(x, x.square().mean(1, keepdim=True))


def weights_of(session, model):
    return torch.cat(
        [each.detach().reshape(-1) for each in session.unwrap(model).parameters()]
    ).tolist()


def same(ranks, function, *args, world_sizes=SEVERAL):
    """Run a function on one rank and on several; all return the same, to 1e-10."""
    (expected,) = ranks.run(function, *args, world_size=1)
    for world_size in world_sizes:
        for found in ranks.run(function, *args, world_size=world_size):
            assert found == pytest.approx(expected, abs=1e-10, rel=0), f"{world_size} ranks"
    return expected


# Training without a row


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    return BertForSequenceClassification(config).double()


def sentences(length):
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "input_ids": torch.randint(1, 50, (6,), generator=generator),
            "labels": torch.tensor(index % 2),
        }
        for index in range(length)
    ]


def train_bert(folder, length, batch_size, stop_after=None):
    session = Session(seed=0, run_dir=folder)
    model = bert()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = session.loader(sentences(length), batch_size, shuffle=True)
    session.restore("latest")
    number = 0
    for _ in session.epochs(1):
        for batch in loader:
            session.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            number += 1
            if number == stop_after:
                session.save(wait=True)
                return None
    right = rows = 0
    model.eval()
    test = session.loader(sentences(7), 3)
    with torch.no_grad():
        for batch in test:
            right += (model(**batch).logits.argmax(1) == batch["labels"]).sum().item()
            rows += test.rows
            assert test.rows == len(batch["labels"])
    return [*weights_of(session, model), session.reduce(right), session.reduce(rows)]


@pytest.mark.parametrize(("length", "batch_size"), [(13, 5), (5, 1)])
def test_a_transformer_trains_where_ranks_have_no_row(ranks, tmp_path, length, batch_size):
    expected = ranks.run(train_bert, str(tmp_path / "one"), length, batch_size, world_size=1)[0]
    assert expected[-1] == 7, "each row is evaluated once"
    for world_size in SEVERAL:
        folder = str(tmp_path / str(world_size))
        for found in ranks.run(train_bert, folder, length, batch_size, world_size=world_size):
            assert found == pytest.approx(expected, abs=1e-10, rel=0)


def test_a_transformer_goes_on_with_more_ranks_than_rows(ranks, tmp_path):
    expected = ranks.run(train_bert, str(tmp_path / "one"), 43, 5, world_size=1)[0]
    folder = str(tmp_path / "other")
    ranks.run(train_bert, folder, 43, 5, 8, world_size=3)
    for found in ranks.run(train_bert, folder, 43, 5, world_size=4):
        assert found == pytest.approx(expected, abs=1e-10, rel=0)


class Flat(nn.Module):
    """As in the first example of Lightning's documentation."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1).double()

    def forward(self, x):
        return self.net(x.view(x.size(0), -1))


class Poisoned(Flat):
    """Its loss is infinite for a row that this rank has borrowed, and NaN flows back from it."""

    def forward(self, x):
        return super().forward(x) / torch.where(x[:1, :1, :1] > 1e5, 0.0, 1.0).sum()


def train_flat(kind, strategy="ddp"):
    session = Session(seed=0, strategy=strategy)
    torch.manual_seed(0)
    model = Flat() if kind == "flat" else Poisoned()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x = torch.arange(30.0, dtype=torch.float64).view(5, 2, 3) / 30
    loader = session.loader(TensorDataset(x), 3)
    for (x,) in loader:
        x = x if loader.rows or kind == "flat" else x * 1e9
        session.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    whole = [
        each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.parameters()
    ]
    return torch.cat([each.detach().reshape(-1) for each in whole]).tolist()


def test_a_view_of_all_rows(ranks):
    same(ranks, train_flat, "flat")


def test_infinite_loss_of_a_borrowed_row_stays_out(ranks):
    same(ranks, train_flat, "poisoned", world_sizes=(3, 4))


def test_with_shards_too(ranks):
    (expected,) = ranks.run(train_flat, "flat", world_size=1)
    for found in ranks.run(train_flat, "poisoned", "fsdp", world_size=4):
        assert found == pytest.approx(expected, abs=1e-8)


def train_packed():
    session = Session(seed=0)
    torch.manual_seed(0)
    model = nn.LSTM(2, 2).double()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(0)
    data = [
        torch.randn(2 + number, 2, generator=generator, dtype=torch.float64) for number in range(5)
    ]

    def packed(samples):
        return pack_sequence(samples, enforce_sorted=False), len(samples)

    for sequences, _ in session.loader(data, 3, collate_fn=packed):
        _, (hidden, _) = model(sequences)
        session.backward(hidden.square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return weights_of(session, model)


def test_packed_sequences(ranks):
    same(ranks, train_packed)


def train_weighted(own_weight):
    """A weight of one's own is that of the rows that the rank has."""
    session = Session(seed=0)
    model = nn.Linear(3, 1).double()
    nn.init.ones_(model.weight)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in session.loader(regression(7), 3):
        session.backward((model(x) - y).square().mean(), weight=own_weight * len(x))
        optimizer.step()
        optimizer.zero_grad()
    return weights_of(session, model)


def test_a_weight_of_a_borrowed_row_is_nothing(ranks):
    same(ranks, train_weighted, 2.0)


def norm(batch_size, gather):
    session = Session(seed=0)
    layers = [nn.Linear(3, 2)] if gather else [nn.Linear(3, 2), nn.BatchNorm1d(2)]
    model = nn.Sequential(*layers).double()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        for x, _ in session.loader(regression(11), batch_size):
            features = model(x)
            if gather:
                others = [torch.empty_like(features) for _ in range(session.world_size)]
                dist.all_gather(others, features)
            session.backward(features.square().mean())
            optimizer.step()
            optimizer.zero_grad()
    except PacelineError as error:
        return error.finding.name, error.finding.fix
    except RuntimeError:
        return "left alone"
    return "fine"


def test_batch_norm_says_which_batch_size_to_take(ranks):
    for found in ranks.run(norm, 5, False, world_size=2):
        assert found[0] == "rows-too-few"
        assert 'last="drop"' in found[1]
        assert "batch_size=6)" in found[1]
    assert ranks.run(norm, 6, False, world_size=2) == ["fine"] * 2


def test_gathered_rows_of_a_rank_without_any_are_refused(ranks):
    """One rank of two has a row in the last batch; both gather one."""
    found = ranks.run(norm, 10, True, world_size=2)
    assert found[0] == "left alone", "its peer has gone"
    assert found[1][0] == "rows-too-few"


# Evaluation without a row


class Graphs:
    """A batch of a type of its own, as torch_geometric's: nobody can empty it."""

    def __init__(self, values):
        self.values = values

    def to(self, device):
        return Graphs(self.values.to(device))


def score(kind):
    session = Session(seed=0)
    model = session.setup(nn.Linear(1, 1).double())
    model.eval()
    values = [torch.tensor([float(index)], dtype=torch.float64) for index in range(11)]
    loader = session.loader(
        values,
        3,
        collate_fn=(lambda samples: Graphs(torch.stack(samples))) if kind == "graphs" else None,
    )
    count = total = steps = 0
    with torch.no_grad():
        for _ in range(2):
            for batch in loader:
                values = batch.values if kind == "graphs" else batch
                model(values)
                count += len(values)
                total += values.sum().item()
                steps += loader.rows > 0
                assert loader.rows == len(values) or not len(values)
    return [session.reduce(count), session.reduce(total)]


@pytest.mark.parametrize("kind", ["graphs", "tensors"])
def test_an_evaluation_counts_each_row_once(ranks, kind):
    assert same(ranks, score, kind) == [22, 110]


def gather_in_evaluation(length, batch_size):
    session = Session(seed=0)
    model = session.setup(nn.Linear(1, 1).double())
    model.eval()
    loader = session.loader(torch.arange(length), batch_size)
    with torch.no_grad():
        by_batch = [session.gather(batch).tolist() for batch in loader]
        whole = session.gather(torch.cat(list(loader))).tolist()
    return [[each for batch in by_batch for each in batch], whole]


@pytest.mark.parametrize(("length", "batch_size"), [(13, 4), (1, 1), (5, 2)])
def test_rows_gathered_in_an_evaluation(ranks, length, batch_size):
    for world_size in (1, *SEVERAL):
        for found in ranks.run(gather_in_evaluation, length, batch_size, world_size=world_size):
            assert found == [list(range(length))] * 2


def gather_in_training():
    session = Session(seed=0)
    model = nn.Linear(1, 1).double()
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = session.loader(torch.arange(7, dtype=torch.float64)[:, None], 3)
    by_batch, kept = [], []
    for x in loader:
        session.backward(model(x).mean())
        optimizer.step()
        by_batch += session.gather(x).flatten().tolist()
        kept.append(x)
    return by_batch, session.gather(torch.cat(kept)).flatten().tolist()


@pytest.mark.parametrize("world_size", [1, *SEVERAL])
def test_gather_leaves_borrowed_rows_out(ranks, world_size):
    assert (
        ranks.run(gather_in_training, world_size=world_size)
        == [([*range(7)], [*range(7)])] * world_size
    )


# The Trainer


class GraphTask(Module):
    """Its batch begins with ``edge_index``, of shape [2, edges]."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1).double()
        nn.init.ones_(self.net.weight)
        self.seen = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def training_step(self, batch, batch_idx):
        self.seen.append(batch_idx)
        loss = self.net(batch["x"]).square().mean()
        self.log("loss", loss, on_step=False, on_epoch=True)
        self.log(
            "mean", batch["x"].mean(), on_step=False, on_epoch=True, batch_size=len(batch["x"])
        )
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("value", batch["x"].mean())


def graphs(samples):
    x = torch.stack(samples)
    return {
        "edge_index": torch.zeros(2, 4 * len(x), dtype=torch.int64),
        "x": x,
        "y": torch.zeros(len(x)),
    }


def fit(batch_size):
    data = [torch.tensor([float(index)], dtype=torch.float64) for index in range(7)]
    loader = DataLoader(data, batch_size=batch_size, collate_fn=graphs)
    trainer = Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, seed=0
    )
    task = GraphTask()
    trainer.fit(task, loader, loader)
    values = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return [
        values["loss"],
        values["mean"],
        values["value"],
        task.net.weight.item(),
        task.net.bias.item(),
    ]


@pytest.mark.parametrize("batch_size", [1, 3, 5])
def test_means_of_the_trainer_are_over_samples(ranks, batch_size):
    found = same(ranks, fit, batch_size)
    assert found[1:3] == [pytest.approx(3.0, abs=1e-12)] * 2


# Rows that are not samples


def tokens(samples):
    """Overflowing tokens: a long sample becomes several rows."""
    rows = [row for sample in samples for row in sample.split(2)]
    return {"x": torch.stack(rows).double(), "y": torch.zeros(len(rows))}


def crops(samples):
    return torch.cat([torch.stack([each, -each])[:, :2] for each in samples]).double()


def some(samples):
    return torch.stack([each[:2] for each in samples if each[0] % 3]).double()


class Long(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.arange(index, index + (2 if index % 2 else 4))


class Masked(Long):
    def __getitem__(self, index):
        labels = torch.full((4,), -100)
        labels[: 1 + index % 3] = 1
        return {"x": torch.full((2,), float(index), dtype=torch.float64), "labels": labels}


def unweighted(kind, weighted):
    session = Session(seed=0)
    model = nn.Linear(2, 1).double()
    nn.init.ones_(model.weight)
    model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    data = Masked() if kind == "masked" else Long()
    collate = {"tokens": tokens, "crops": crops, "some": some, "masked": None}[kind]
    try:
        for batch in session.loader(data, 6, collate_fn=collate, num_workers=0):
            x = batch["x"] if isinstance(batch, dict) else batch
            losses = model(x).square().flatten()
            if kind == "masked":
                count = (batch["labels"] != -100).sum()
                loss = (losses * (batch["labels"] != -100).sum(1)).sum() / count
            else:
                count, loss = len(x), losses.mean()
            session.backward(loss, weight=count if weighted else None)
            optimizer.step()
            optimizer.zero_grad()
    except PacelineError as error:
        return error.finding.name
    return weights_of(session, model)


@pytest.mark.parametrize("kind", ["tokens", "some", "masked"])
def test_rows_that_are_not_samples_want_a_weight(ranks, kind):
    same(ranks, unweighted, kind, True, world_sizes=(2, 3))
    assert ranks.run(unweighted, kind, False, world_size=2) == ["batch-weight-unknown"] * 2


def test_as_many_rows_of_each_sample_want_none(ranks):
    same(ranks, unweighted, "crops", False, world_sizes=(2, 3))


def test_one_rank_needs_no_weight(ranks):
    (found,) = ranks.run(unweighted, "tokens", False, world_size=1)
    assert isinstance(found, list)


# Map-style data that the user has shared out


class Files(Dataset):
    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return torch.tensor([float(self.files[index][:-4])], dtype=torch.float64)


def sharded_files(length, trains, folder):
    session = Session(seed=0)
    model = session.setup(nn.Linear(1, 1).double())
    names = [f"{index:02}.png" for index in range(length)]
    mine = names if folder else names[session.rank :: session.world_size]
    count = 0
    try:
        with torch.set_grad_enabled(trains):
            loader = session.loader(Files(mine), 4)
            for x in loader:
                if trains:
                    session.backward(model(x).mean())
                count += loader.rows
        return session.reduce(count)
    except PacelineError as error:
        return error.finding.name
    except RuntimeError:
        return "left alone"


@pytest.mark.parametrize("length", [24, 23])
@pytest.mark.parametrize("trains", [True, False])
def test_files_that_were_shared_out_are_refused(ranks, length, trains):
    found = ranks.run(sharded_files, length, trains, False, world_size=2)
    assert "data-not-shardable" in found
    assert math.isclose(sum(isinstance(each, int) for each in found), 0), "no number without a word"
    assert ranks.run(sharded_files, length, trains, True, world_size=2) == [length] * 2


class Own(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(torch.arange(self.length, dtype=torch.float64)[:, None])


def evaluate_uneven_streams():
    session = Session()
    model = session.setup(nn.Linear(1, 1).double())
    model.eval()
    loader = session.loader(Own(3 + 4 * session.rank), per_rank_batch_size=2, sharded=True)
    with torch.no_grad():
        count = sum(len(model(x)) for x in loader)
    return session.reduce(count)


def test_streams_that_end_earlier_evaluate_nothing_more(ranks):
    assert ranks.run(evaluate_uneven_streams, world_size=3) == [3 + 7 + 11] * 3
