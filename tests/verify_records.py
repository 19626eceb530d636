"""Records of ranks as ``paceline verify`` reads them, for tests of what it decides."""

from paceline.measure.verify.records import (
    LoopRecord,
    Rank,
    RecordedFigure,
    RecordedStep,
    RecordedTraining,
    RecordedWorld,
)

LENGTH = 64
MIXED = [(index * 37 + 11) % LENGTH for index in range(LENGTH)]
REMIXED = [(index * 29 + 5) % LENGTH for index in range(LENGTH)]


def batches(indices, size=8):
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def epoch(indices, size=8, **values):
    """A loop that trains, over samples whose content is that of their index."""
    known = {
        "place": "train.py:20",
        "dataset": "TensorDataset",
        "dataset_length": LENGTH,
        "view_length": LENGTH,
        "num_batches": -(-len(indices) // size),
        "trains": True,
        "has_ended": True,
        "shuffles": True,
        "samples": len(indices),
        "rows": {index: (index, index % 4) for index in indices},
    }
    return LoopRecord(batches=batches(list(indices), size), **{**known, **values})


def evaluation(indices, **values):
    """A loop that evaluates."""
    known = {"place": "train.py:30", "dataset": "Held", "dataset_length": 33, "view_length": 33}
    known |= {"trains": False, "is_evaluation": True, "rows": {}}
    return epoch(indices, **{**known, **values})


def step(number, rate=0.1, **values):
    known = {"losses": (1.0,), "gradients": 1000 + number}
    return RecordedStep(number, (rate,), **{**known, **values})


def training(steps=8, **values):
    """An optimizer whose parameters are the same on all ranks."""
    made = values.pop("steps_made", None) or [step(number) for number in range(1, steps + 1)]
    known = {
        "type": "SGD",
        "place": "train.py:24",
        "names": ("weight",),
        "is_parallel": True,
        "checksums": {number: 500 + number for number in range(len(made))},
        "sums": {number: (500 + number,) for number in range(len(made))},
    }
    return RecordedTraining(steps=made, **{**known, **values})


def rank(loops=(), trained=None, printed=(), schedule=""):
    trainings = {} if trained is None else {0: trained}
    return Rank(dict(enumerate(loops)), trainings, list(printed), schedule)


def world(*ranks, findings=()):
    return RecordedWorld(len(ranks), ranks, tuple(findings))


def line(text="accuracy 0.91", *, loop=1, combined=False):
    return RecordedFigure(loop, text, "train.py:35", combined)


def one(orders=(MIXED, REMIXED), held=range(33), trained=None, printed=()):
    """What one rank alone records."""
    loops = [epoch(orders[0]), evaluation(held), *(epoch(order) for order in orders[1:])]
    return world(rank(loops, trained or training(), printed))


def shared(num_ranks=2, orders=(MIXED, REMIXED), held=range(33), size=8, trained=None, printed=()):
    """What ranks record that share the samples of an epoch and of an evaluation."""
    ranks = []
    for number in range(num_ranks):
        shares = [order[number::num_ranks] for order in orders]
        loops = [epoch(shares[0], size), evaluation(list(held)[number::num_ranks])]
        loops += [epoch(share, size) for share in shares[1:]]
        ranks.append(rank(loops, trained or training(), printed if number == 0 else ()))
    return world(*ranks)
