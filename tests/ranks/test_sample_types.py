"""Samples and batches of any type: what is a Mapping, a tuple or a tensor by name alone."""

import collections
import dataclasses
import importlib.util
import warnings
from collections.abc import MutableMapping

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from ranks import parity

LENGTH, BATCH = 13, 5  # the last batch has 3 samples, so that rank 3 of 4 has none


class RowDict(MutableMapping):
    """A TensorDict as a loader meets it: a Mapping whose iterator and length are those of its rows."""

    def __init__(self, parts, shape):
        self._parts, self.shape = dict(parts), torch.Size(shape)

    def __getitem__(self, key):
        if isinstance(key, str):
            return self._parts[key]
        parts = {name: part[key] for name, part in self._parts.items()}
        return RowDict(parts, torch.empty(self.shape)[key].shape)

    def __setitem__(self, key, part):
        assert part.shape[: self.dim()] == self.shape, "a part has other rows than the whole"
        self._parts[key] = part

    def __delitem__(self, key):
        del self._parts[key]

    def __contains__(self, key):
        assert isinstance(key, str)
        return key in self._parts

    def __iter__(self):
        if not self.shape:
            raise TypeError("iteration over a 0-d tensordict")
        return (self[place] for place in range(len(self)))

    def __len__(self):
        return self.shape[0] if self.shape else 0

    def keys(self):
        return self._parts.keys()

    def values(self):
        return self._parts.values()

    def items(self):
        return self._parts.items()

    def dim(self):
        return len(self.shape)

    def to(self, *_):
        return self


class Pair(collections.namedtuple("Pair", "x y")):
    pass


@dataclasses.dataclass
class Fields:
    x: torch.Tensor
    y: torch.Tensor


class Stream(IterableDataset):
    def __init__(self, samples):
        self._samples = samples

    def __iter__(self):
        return iter(self._samples)


class Net(nn.Module):
    """Takes a tensor, or the batch that holds it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 1))

    def forward(self, batch):
        return self.layers(batch if isinstance(batch, torch.Tensor) else batch["x"])


def rows():
    x = torch.randn(LENGTH, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return x, x.square().mean(1, keepdim=True)


def stacked(samples):
    parts = {name: torch.stack([sample[name] for sample in samples]) for name in ("x", "y")}
    return RowDict(parts, [len(samples)])


def of_fields(samples):
    return Fields(
        torch.stack([sample.x for sample in samples]), torch.stack([sample.y for sample in samples])
    )


def of_sparse(samples):
    return torch.stack([x.to_dense() for x, _ in samples]), torch.stack([y for _, y in samples])


def as_nested(samples):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls their interface a prototype
        return torch.nested.nested_tensor([x for x, _ in samples]), [y for _, y in samples]


def of_nested(batch):
    return torch.stack(batch[0].unbind()), torch.stack(batch[1])


def by_name(batch):
    return batch["x"], batch["y"]


def by_attribute(batch):
    return batch.x, batch.y


def kinds():
    """Return samples, a collate function, and what makes inputs and targets of a batch, by name."""
    x, y = rows()
    pairs = list(zip(x, y, strict=True))
    row_dicts = [RowDict({"x": a, "y": b}, []) for a, b in pairs]
    sparse = [(a.to_sparse(), b) for a, b in pairs]
    found = {
        "row dicts": (row_dicts, stacked, by_name),
        "row dicts that the model takes": (row_dicts, stacked, lambda batch: (batch, batch["y"])),
        "a row dict as dataset": (RowDict({"x": x, "y": y}, [LENGTH]), stacked, by_name),
        "user dicts": ([collections.UserDict(x=a, y=b) for a, b in pairs], None, by_name),
        "named tuples": ([Pair(a, b) for a, b in pairs], None, by_attribute),
        "dataclasses": ([Fields(a, b) for a, b in pairs], of_fields, by_attribute),
        "sparse tensors": (sparse, of_sparse, tuple),
        "nested tensors": (pairs, as_nested, of_nested),
    }
    if importlib.util.find_spec("tensordict"):
        from tensordict import TensorDict

        samples = [TensorDict({"x": a, "y": b}, []) for a, b in pairs]
        found["tensordicts"] = samples, None, by_name
        found["a tensordict as dataset"] = TensorDict({"x": x, "y": y}, [LENGTH]), None, by_name
    return found


def trained(folder):
    """Return losses, weights and gathered outputs of a training on samples of each type."""
    session, (x, y) = parity.session_of(folder), rows()
    results = {}
    for kind, (samples, collate, pair) in kinds().items():
        for is_stream in (False, True):
            data = Stream([samples[place] for place in range(LENGTH)]) if is_stream else samples
            torch.manual_seed(5)
            model = Net()
            model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
            loader = session.loader(data, BATCH, num_workers=0, collate_fn=collate)
            losses, weights = parity.train(
                session,
                model,
                optimizer,
                loader,
                lambda model, batch, pair=pair: nn.functional.mse_loss(
                    model(pair(batch)[0]), pair(batch)[1]
                ),
                watch=lambda model: nn.functional.mse_loss(model(x), y),
                epochs=1,
            )
            outputs = [] if kind == "nested tensors" else evaluated(session, model, loader, pair)
            results[kind, is_stream] = losses, weights, outputs
    total = session.reduce(RowDict({"x": x, "y": y}, [LENGTH]))
    return results, {name: float(part.sum()) / session.world_size for name, part in total.items()}


@torch.no_grad()
def evaluated(session, model, loader, pair):
    """Return what a model computes of all samples; a rank without a row takes part in the gathering."""
    model.eval()
    return [row for batch in loader for row in session.gather(model(pair(batch)[0])).tolist()]


def test_samples_of_any_type_train_alike_on_any_number_of_ranks(ranks, tmp_path):
    [(expected, own)] = ranks.run(trained, str(tmp_path / "one"), world_size=1)
    for found, total in ranks.run(trained, str(tmp_path / "four"), world_size=4):
        assert found.keys() == expected.keys()
        for kind, (losses, weights, outputs) in expected.items():
            parity.check([found[kind][:2]], (losses, weights))
            assert len(outputs) == len(found[kind][2]) in (0, LENGTH), kind
            for (theirs,), (output,) in zip(found[kind][2], outputs, strict=True):
                assert theirs == pytest.approx(output, abs=parity.TOLERANCE), kind
        assert total == pytest.approx(own)
