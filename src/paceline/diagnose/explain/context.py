"""Rename, reword and drop candidates by what the rest of the text shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from paceline.diagnose.explain.candidates import Candidate, changed, quoted
from paceline.diagnose.explain.scan import Match, Scanned
from paceline.signatures.tier import Tier

_ALONE = (
    "look at that rank's own output: torchrun --log-dir logs --redirects 3; a sys.exit(n) or"
    " os._exit(n) ends so too"
)
_ELASTIC = "torch.distributed.elastic"  # torch's launcher


def drop_prefix_mismatch(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop a mismatch of prefixes if keys on both sides start with ``module.``."""
    kinds = {
        match.groups["kind"].lower()
        for match in scanned.of("state-key")
        if match.groups["key"].startswith("module.")
    }
    if not {"missing", "unexpected"} <= kinds:
        return list(candidates)
    return [candidate for candidate in candidates if candidate.key != "prefix"]


def drop_refusal(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drop a refusal if sbatch accepted the job."""
    if not scanned.of("submitted"):
        return list(candidates)
    return [candidate for candidate in candidates if candidate.key != "refused-in-other-words"]


def batch_without_samples(scanned: Scanned, candidates: Sequence[Candidate]) -> Candidate | None:
    """Infer a batch that is too small if a replica other than the first lacks an argument."""
    replicas = [match for match in scanned.of("replica") if int(match.groups["replica"]) > 0]
    missing_arguments = scanned.of("missing-argument")
    if not replicas or not missing_arguments:
        return None
    first = replicas[0]
    return Candidate(
        "batch-smaller-than-gpus",
        Tier.CAUSE,
        first.line.number,
        f"replica {first.groups['replica']} got nothing: the batch has fewer samples than GPUs",
        evidence=quoted([first.line, missing_arguments[0].line]),
        fix="DataLoader(..., drop_last=True) and a batch of at least one sample for each GPU",
    )


def generalize_in_place_change(
    scanned: Scanned, candidates: Sequence[Candidate]
) -> list[Candidate]:
    """Rename a tensor changed in place to an ordinary fault, unless the run is distributed."""
    if scanned.counts["distributed"] or scanned.ranks:
        return list(candidates)
    return changed(candidates, _without_ddp, name="ddp-inplace-buffer")


def _without_ddp(candidate: Candidate) -> Candidate:
    return replace(
        candidate,
        name="user-exception",
        what=candidate.what.partition("; under DDP")[0],
        fix=(
            "torch.autograd.set_detect_anomaly(True) shows the forward operation whose result was"
            " changed"
        ),
    )


def place_first_failure(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Take the rank and the host of the first failure from the last block of torchrun's table."""
    ranks, hosts, codes = (scanned.of(key) for key in ("table-rank", "table-host", "table-exit"))
    if not ranks:
        return list(candidates)
    host = f" on {hosts[-1].groups['host']}" if hosts else ""
    place = f"rank {ranks[-1].groups['rank']}{host}"
    failure = codes[-1] if codes and int(codes[-1].groups["code"]) > 0 else None
    return [_placed(candidate, place, failure) for candidate in candidates]


def _placed(candidate: Candidate, place: str, failure: Match | None) -> Candidate:
    """Return a candidate with the place of the first failure, if it is about that failure."""
    if not candidate.where and candidate.key.startswith(("exit-", "summary")):
        return replace(candidate, where=place)
    is_victim = candidate.name == "peer-rank-died" and candidate.tier >= Tier.VICTIM
    if failure is None or not is_victim:
        return candidate
    code = int(failure.groups["code"])
    return replace(
        candidate,
        what=f"{place} ended first, with exit code {code}; its own words are not in this text",
        where=place,
        fix=_ALONE,
        evidence=quoted([failure.line]) + candidate.evidence,
    )


def blame_server(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Replace a file missing in the cache by the refusal of a server, which explains it."""
    answers = scanned.of("server-answered")
    if not answers:
        return list(candidates)
    return changed(candidates, partial(_refused, answer=answers[0]), key="not-in-cache")


def _refused(candidate: Candidate, answer: Match) -> Candidate:
    refusal = quoted([answer.line])
    return replace(
        candidate,
        name="user-exception",
        # The exception that names the refusal ranks first, if the text has it.
        tier=Tier.DOUBTFUL_EXCEPTION,
        what=f"a server refuses a file, which is not in the local cache either: {refusal[0]}",
        evidence=refusal + candidate.evidence,
        why="the server was reached, so this node has access to it",
        fix=(
            "open the address in a browser with the same account: the name, the permission and the"
            " token (huggingface-cli login) must be right"
        ),
    )


def name_other_python(scanned: Scanned, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Rename a missing torch if torch's own launcher runs: there are two Python environments."""
    tails = scanned.tails.values()
    if not any(_ELASTIC in line.text for tail in tails for line in tail):
        return list(candidates)
    return changed(
        candidates,
        lambda candidate: replace(candidate, name="wrong-python-env"),
        name="torch-missing",
    )
