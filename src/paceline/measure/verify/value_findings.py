"""What ``paceline verify`` says of values that are not those of one process. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paceline.errors import Finding
from paceline.measure.verify.recorded_values import Compared

_MOST_NAMES = 4


class _Text(NamedTuple):
    """What is said of a kind of difference; words in braces are replaced."""

    finding: str
    what: str
    evidence: str
    fix: str
    why: str = "training on several ranks is another one than on 1 rank, with the same settings"


_TEXTS = {
    "output": _Text(
        "output-differs",
        "{module} returns other values on {ranks} than on 1 rank",
        "what goes into the model is the same, and earlier modules agree",
        "look at what ranks exchange here: partial sums that are not added, or added twice, a bias"
        " added by each rank, parts in another order, positions counted anew",
    ),
    "same rows": _Text(
        "output-differs",
        "{ranks} give the model {distinct} different inputs, which are not the batch of 1 rank",
        "ranks read the same rows, and rows that 1 rank reads are left out",
        "cut the batch by the rank among those that share data, and not by that of another group",
        "the other rows are never learned from, and the global batch is smaller than it seems",
    ),
    "other rows": _Text(
        "output-differs",
        "{ranks} compute parts of {name}, each from other rows",
        "ranks hold parts of this layer, and the inputs of their models are different",
        "give ranks that divide a layer the same rows: seed and cut the batch by the data rank",
        "sums over ranks add the parts of different samples",
    ),
    "loss": _Text(
        "loss-differs",
        "the loss of step {step} is {loss:.6g} over all ranks, and {expected:.6g} on 1 rank",
        "inputs, parameters and outputs of modules agree; loss and gradients do not",
        "divide by the number of samples or tokens of all ranks, or gather what is compared",
        "each rank computes something else than its part of the loss; where a loss compares the"
        " samples of a batch (contrastive), that is expected",
    ),
    "factor": _Text(
        "updates-differ",
        "the gradients that {ranks} apply are {factor:.3g} times those on 1 rank",
        "all gradients by factor {factor:.4g}; parameters and outputs of modules agree",
        "average over samples: a loss that is a mean, and gradients divided by the number of ranks"
        " once, and by that of accumulated batches once",
    ),
    "gradient": _Text(
        "updates-differ",
        "the gradient of {name} is another one on {ranks}; {counts} gradients are",
        "outputs of modules agree; of the wrong gradients this is that of the last module, where a"
        " backward begins",
        "reduce the gradient once, over the group of ranks that hold the parameter; a norm for"
        " clipping is that over all parts",
    ),
    "idle": _Text(
        "updates-differ",
        "the last backward before a step has changed no gradient",
        "gradients are those that the backward before has left",
        "reduce gradients at the last backward before the step: no no_sync, and"
        " set_requires_gradient_sync(True)",
        "the samples of this backward are not learned from in this step, or never",
    ),
    "update": _Text(
        "updates-differ",
        "the optimizer changes {name} by something else on {ranks} than on 1 rank",
        "its gradients agree",
        "an optimizer that looks at more than one value at a time (Muon, a norm) needs the whole"
        " parameter, not a part of it; its options must not depend on the rank",
    ),
    "changed": _Text(
        "updates-differ",
        "{name} is another one on {ranks}, though the optimizer's step before was right",
        "something else has changed it between two steps",
        "look for a broadcast, a copy or an average of parameters between steps",
    ),
    "copy": _Text(
        "updates-differ",
        "the copy of {name} in {copy} is another one on {ranks}; the parameter itself is not",
        "parameters agree",
        "average the same part of the parameter on every rank, after each step",
    ),
    "start": _Text(
        "initialisation-differs",
        "ranks begin with different parameters where they hold the same ones",
        "parameters differ before the first step",
        "one seed before the model is built, or a broadcast to all that hold the same part",
        "ranks train another model than one process does",
    ),
    "equal parts": _Text(
        "initialisation-differs",
        "ranks begin with equal values in different parts of a parameter",
        "parameters differ before the first step",
        "draw the whole parameter with one seed and cut out the part, or seed each part apart",
        "ranks train another model than one process does",
    ),
}


def finding(
    kind: str,
    name: str,  # of the parameter or module from which to look
    *,
    step: int,
    ranks: str,
    place: str,
    wrong: Sequence[Compared] = (),  # all that differ
    **words: object,
) -> Finding:
    """Return what is said of a difference."""
    text = _TEXTS[kind]
    words = {"name": name, "step": step, "ranks": ranks, **words}
    first = [_numbers(each, ranks) for each in wrong if each.name == name]
    return Finding(
        text.finding,
        text.what.format(**words),
        where=place,
        evidence=(
            f"first: {name}",
            f"step {step}: {text.evidence.format(**words)}",
            *first,
            *_others(wrong, name),
        ),
        why=text.why,
        fix=text.fix,
        severity="warning",
    )


def _numbers(compared: Compared, ranks: str) -> str:
    of_ranks, of_one = compared.total[2] / compared.copies, compared.expected[2] / compared.copies
    return (
        f"sum of its magnitudes: {of_ranks:.6g} on {ranks}, {of_one:.6g} on 1 rank; sums differ by"
        f" {compared.error:.2g} of that"
    )


def _others(wrong: Sequence[Compared], first: str) -> list[str]:
    names = [each.name for each in wrong if each.name != first]
    rest = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return [f"also different: {', '.join(names[:_MOST_NAMES])}{rest}"] if names else []
