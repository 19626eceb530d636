"""Each signature matches a line that a program really prints, and that stands in its source."""

from __future__ import annotations

import re
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from string import Formatter

import pytest

from paceline.signatures.libraries import AREAS, of_area
from paceline.signatures.signature import fill
from paceline.signatures.tier import Tier
from paceline.text import toml

TEXT = (Path(__file__).parent / "printed.toml").read_text(encoding="utf-8")
PRINTED = toml.loads(TEXT)["printed"]
INSTALLED = Path(sysconfig.get_path("purelib"))


@pytest.mark.parametrize("area", AREAS)
def test_each_signature_matches_a_line_that_is_printed(area):
    lines = [record["line"] for record in PRINTED if record["area"] == area]
    unmatched = [
        (signature.name or signature.key, signature.pattern)
        for _, signature in of_area(area)
        if not any(signature.match(line, line.lower()) is not None for line in lines)
    ]
    assert unmatched == []


@pytest.mark.parametrize("area", AREAS)
def test_each_fault_is_told_with_a_fix_whose_templates_name_its_groups(area):
    lines = [record["line"] for record in PRINTED if record["area"] == area]
    for signature in [each for _, each in of_area(area) if each.tier is not Tier.REMARK]:
        groups = re.compile(signature.pattern).groupindex
        named = {
            field[1] for text in signature.what + signature.fix for field in Formatter().parse(text)
        }
        assert named - {None} <= groups.keys(), signature.what
        for line in lines:
            if (found := signature.match(line, line.lower())) is not None:
                assert fill(signature.what, found) and fill(signature.fix, found), line


def test_the_literal_part_of_each_line_is_in_it():
    for record in PRINTED:
        assert record.get("literal", "") in record["line"], record


def test_lines_of_installed_libraries_stand_in_their_files():
    literals: dict[Path, set[bytes]] = {}
    for record in PRINTED:
        library, _, recorded = record.get("from", "").partition(" ")
        file = INSTALLED / record.get("file", "-")
        if file.is_file() and _is_installed(library, recorded):
            literals.setdefault(file, set()).add(record["literal"].encode())
    for file, wanted in literals.items():
        content = file.read_bytes()  # of libtorch, some hundred megabytes
        assert {literal for literal in wanted if literal not in content} == set(), file
    looked_up = sum(map(len, literals.values()))
    if _is_installed("torch", "2.13.0"):
        assert looked_up > 60


def _is_installed(library: str, recorded: str) -> bool:
    try:
        return version(library).partition("+")[0] == recorded.partition("+")[0]
    except (PackageNotFoundError, ValueError):
        return False
