"""What the rest of a text shows changes what is advised; what it does not show is not claimed."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.diagnose.explain import judge
from paceline.signatures.libraries import signatures, texts_of
from paceline.text import toml

CASES = toml.loads(Path(__file__).with_name("context.toml").read_text(encoding="utf-8"))["case"]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_first_finding_says_what_the_text_shows_and_no_more(case):
    finding = judge([case["text"]]).findings[0]
    assert finding.name == case["name"]
    told = "\n".join(
        (finding.what, f"where: {finding.where}" if finding.where else "", finding.why)
    )
    told += f"\n{finding.fix}"
    assert [text for text in case.get("says", ()) if text not in told] == [], told
    assert [text for text in case.get("silent", ()) if text in told] == [], told


def test_each_row_names_faults_and_notes_that_there_are():
    keys = {signature.key for signature in signatures()}
    names = keys | {signature.name for signature in signatures()} | {"labelled-rank"}
    for row in texts_of("context")["row"]:
        assert {*row["of"], *row.get("absent", ()), row.get("note", "fp16")} <= names, row
