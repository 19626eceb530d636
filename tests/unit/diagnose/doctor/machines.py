"""The recorded machines of ``tests/facts``, and variants of them."""

import json
from dataclasses import replace
from pathlib import Path

from paceline.diagnose.doctor.facts import Facts

FOLDER = Path(__file__).parents[3] / "facts"


def names():
    """The names of all recorded machines."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def raw(name):
    """What is recorded of a machine, as it stands in its file."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def machine(name, settings=None, **changes):
    """A recorded machine, with these settings and other changed facts."""
    facts = Facts.from_json(raw(name))
    if settings is not None:
        facts = replace(facts, settings=settings)
    return replace(facts, **changes)


def limited(facts, **changes):
    """The same machine with other limits."""
    return replace(facts, limits=replace(facts.limits, **changes))


def hosted(facts, **changes):
    """The same machine as another kind of host."""
    return replace(facts, host=replace(facts.host, **changes))


def with_gpu(facts, index=0, **changes):
    """The same machine, one of its GPUs changed."""
    gpus = [replace(gpu, **changes) if gpu.index == index else gpu for gpu in facts.gpus]
    return replace(facts, gpus=tuple(gpus))


def with_pairs(facts, **changes):
    """The same machine, the pairs of its GPUs changed."""
    return replace(facts, pairs=tuple(replace(pair, **changes) for pair in facts.pairs))


def found(findings):
    """Findings as ``severity name``."""
    return [f"{finding.severity} {finding.name}" for finding in findings]
