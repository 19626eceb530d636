"""Infer faults from several lines together, and change the tiers of candidates. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from paceline.diagnose.explain import (
    arrivals,
    collectives,
    context,
    memory,
    non_finite,
    pairs,
    survived,
)
from paceline.diagnose.explain.candidates import Candidate
from paceline.diagnose.explain.scan import Scanned

Rule = Callable[[Scanned, Sequence[Candidate]], list[Candidate]]
Inference = Callable[[Scanned, Sequence[Candidate]], Candidate | None]


def infer(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Apply all rules in order; return the changed candidates and the inferred ones."""
    current = list(candidates)
    for rule in RULES:
        current = rule(scanned, current)
    return current


def _adding(inference: Inference) -> Rule:
    """Return the rule that adds the inferred fault, if there is one."""

    @wraps(inference)
    def rule(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
        candidate = inference(scanned, candidates)
        return [*candidates] if candidate is None else [*candidates, candidate]

    return rule


# Each rule sees the candidates as the rules above it leave them.
RULES: tuple[Rule, ...] = (
    # Faults that only several lines show
    collectives.name_ranks_behind,
    _adding(arrivals.wrong_number_of_tasks),
    _adding(arrivals.local_rank_without_device),
    _adding(arrivals.double_launch),
    _adding(non_finite.falling_loss_scale),
    _adding(non_finite.non_finite_gradient),
    _adding(non_finite.stopped_on_nan),
    _adding(non_finite.loss_not_finite),
    _adding(collectives.different_collectives),
    _adding(collectives.slow_rank),
    _adding(collectives.uneven_inputs),
    _adding(collectives.rank_dependent_graph),
    _adding(context.batch_without_samples),
    # Names, words and places that depend on the rest of the text
    memory.name_holder,
    arrivals.weigh_missing_endpoint,
    arrivals.advise_one_start,
    arrivals.blame_init_file,
    non_finite.generalize_divergence,
    context.drop_prefix_mismatch,
    context.generalize_in_place_change,
    context.place_first_failure,
    context.blame_server,
    pairs.blame_launcher,
    pairs.name_single_rank,
    # What the run survived, and what follows from another fault
    survived.lower_survived,
    survived.drop_ended_after_success,
    context.drop_refusal,
    pairs.lower_consequences,
    context.name_other_python,
    pairs.lower_after_stop,
    survived.drop_overcome,
    survived.drop_recovered,
    # Faults of a text without a likelier one
    _adding(arrivals.interrupted_rendezvous),
    _adding(collectives.hang_at_start),
)
