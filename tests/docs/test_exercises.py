"""The exercises: the check of each fails with the gap, and passes with the solution below it."""

import re
from pathlib import Path

import pytest

from pages import CHECK, blocks, run

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "exercises.md"
TEXT = GUIDE.read_text(encoding="utf-8")
EXERCISES = re.split(r"^## ", TEXT, flags=re.M)[1:]


def fill_gaps(text, folder):
    """Apply the diffs of a solution to the files in which they fit."""
    for before, after in (block.sides for block in blocks(text) if block.language == "diff"):
        (file,) = [each for each in folder.glob("*.[ps][yh]") if before in each.read_text()]
        file.write_text(file.read_text().replace(before, after))


@pytest.mark.slow
@pytest.mark.timeout(600)  # eight starts of ranks, on a busy machine
@pytest.mark.parametrize("number", range(len(EXERCISES)))
def test_a_check_fails_with_the_gap_and_passes_with_the_solution(number, tmp_path):
    *earlier, exercise = EXERCISES[: number + 1]
    for block in (block for block in blocks(TEXT) if block.file):
        (tmp_path / block.file).write_text(block.text)
    for text in earlier:
        fill_gaps(text, tmp_path)
    (check,) = [block for block in blocks(exercise, CHECK) if block.status is not None]
    status, output = run(check, tmp_path, timeout_s=240)
    assert status != 0, output
    fill_gaps(exercise, tmp_path)
    status, output = run(check, tmp_path, timeout_s=240)
    assert status == 0, output
