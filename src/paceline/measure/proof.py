"""Run ``paceline run --prove``: start the script on one rank, and print what its proof shows.

The rank proves (``launch.probe.loss_proof``) in a run folder that is removed. If float64 fails in
the script, it is started once more, and computes with the types of the script.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from paceline import env
from paceline.errors import EXIT_FAILED, EXIT_MISUSE, EXIT_OK, Finding
from paceline.launch.plan import option, script
from paceline.launch.plan.options import OPTION, PROGRAM, Options
from paceline.measure import files_as_before, trial
from paceline.measure.trial import Trial
from paceline.rundir import proofs
from paceline.rundir.proofs import MIXES, NOT_JUDGED, PROVEN, UNDER_WAY, Proof
from paceline.text import terminal
from paceline.text.json_text import print_json

_STATUS = {PROVEN: EXIT_OK, MIXES: EXIT_FAILED, NOT_JUDGED: EXIT_MISUSE}
FAILED = "the script failed"  # before its first batch was trained on
_NO_LOOP = (
    "no loss.backward() followed a batch of a DataLoader, of session.loader or of a Trainer in it"
)


@files_as_before.keeping()
def prove(options: Options) -> int:
    """Prove the loss of a script, print the result, and keep it; return the exit status."""
    text = script.read(options)
    with tempfile.TemporaryDirectory(prefix="paceline-prove-") as scratch:
        proof, evidence = ask(options, text, Path(scratch))
    _show(proof, evidence, as_json=options.json)
    return _STATUS[proof.state]


def ask(
    options: Options,  # the script, its arguments, and options of ``paceline run`` as typed
    text: str,  # of the script
    folder: Path,  # for its run folders
    *,
    # called several times a second while it runs; an exception ends it
    tick: Callable[[], None] = lambda: None,
) -> tuple[Proof, tuple[str, ...]]:
    """Start a script, and keep what it has shown; return it, and why it has failed, if so."""
    folder.mkdir(exist_ok=True)
    proof, evidence = _ask(options, folder, tick)
    path = proofs.path_of(
        options.script, options.script_args, text=text if options.module else None
    )
    try:
        proofs.write(path, proof)
    except OSError as error:
        terminal.say(f"the proof cannot be kept in {path}: {error.strerror}")
    return proof, evidence


def _ask(
    options: Options, scratch: Path, tick: Callable[[], None]
) -> tuple[Proof, tuple[str, ...]]:
    file = scratch / "proof.json"
    for name in ("float64", "own-types"):
        status, output = trial.launch(_trial(options, file, scratch / name), tick)
        proof = proofs.read_at(file)
        is_retried = proof is not None and proof.state == UNDER_WAY and proof.is_double
        if not (is_retried and status):
            break
    if not status:
        return _of_ended(proof), ()
    findings = trial.report_in(output).get("findings") or ()
    first = Finding.from_json(findings[0]) if findings else None
    reason = FAILED if proof is None else proof.reason
    return Proof(NOT_JUDGED, reason), trial.reason(first, output)


def _trial(options: Options, file: Path, run_dir: Path) -> Trial:
    typed = [(name, value) for name, value in options.typed if OPTION[name].group == PROGRAM]
    words = [word for pair in typed for word in option.as_words(*pair)]
    return Trial(
        command=(options.script, *options.script_args),
        world_size=1,
        steps=0,
        run_dir=run_dir,
        options=tuple(words),
        variables={env.PROOF: str(file), "WANDB_MODE": "disabled"},
        timeout_s=math.inf,
    )


def _of_ended(proof: Proof | None) -> Proof:
    """Return the result of a script that has ended well."""
    if proof is None:
        return Proof(NOT_JUDGED, _NO_LOOP)
    if proof.state != UNDER_WAY:
        return proof
    return replace(proof, state=NOT_JUDGED, reason=f"{proof.reason}: it takes ten batches")


def _show(proof: Proof, evidence: tuple[str, ...], *, as_json: bool) -> None:
    finding = None if proof.finding is None else Finding.from_json(proof.finding)
    if as_json:
        findings = [] if finding is None else [finding.to_json()]
        values = {"state": proof.state, "reason": proof.reason, "error": proof.error}
        print_json({**values, "findings": findings, "evidence": list(evidence)})
    elif finding is not None:
        terminal.show(finding.render())
    elif proof.state == PROVEN:
        terminal.show(proof.line)
    else:
        terminal.show(
            "\n".join((f"not judged: {proof.reason}", *(f"  {line}" for line in evidence)))
        )
