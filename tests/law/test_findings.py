"""The names of findings are a contract: spelled once, with a code of their own, and all in use."""

from __future__ import annotations

import ast
import re

from paceline.codes import CODES
from paceline.errors import (
    EXIT_FAILED,
    EXIT_MISUSE,
    Finding,
    PacelineError,
    RunError,
    SetupError,
    UsageError,
)
from paceline.signatures.libraries import signatures

# Fixed names whose finding nobody makes yet; whoever makes one takes it off this list.
NOT_YET: list[str] = []
MAKERS = {"Finding", "UsageError.of", "SetupError.of", "RunError.of"}


def names_given(node):
    """The names that an expression may stand for; nothing for one that is decided elsewhere."""
    if isinstance(node, ast.Constant):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from names_given(node.body)
        yield from names_given(node.orelse)


def test_codes_are_unique():
    assert sorted(CODES.values()) == sorted(set(CODES.values()))


def test_codes_and_names_have_their_shape():
    assert [code for code in CODES.values() if not re.fullmatch(r"[A-Z]{3}\d{3}", code)] == []
    assert [name for name in CODES if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)] == []


def test_every_finding_has_a_known_name(sources):
    given = [
        (f"{source.path}:{node.lineno}", name)
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in MAKERS
        for argument in [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
        for name in names_given(argument)
    ]
    assert len(given) > 30
    assert [(place, name) for place, name in given if name not in CODES] == []


def test_every_name_is_used(sources):
    used = {
        node.value
        for source in sources
        if source.path != "codes.py"
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    used |= {signature.name for signature in signatures()}
    assert sorted(set(CODES) - used) == NOT_YET


def test_the_exceptions_for_users_carry_a_finding():
    finding = Finding("option-invalid", "no")
    for kind in (UsageError, SetupError, RunError):
        assert issubclass(kind, PacelineError)
        assert kind(finding).finding is finding
        assert kind.of("option-invalid", "no").finding == finding
    assert {UsageError.exit_status, SetupError.exit_status} == {EXIT_MISUSE}
    assert RunError.exit_status == EXIT_FAILED
