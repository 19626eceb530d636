"""The blocks of docs/guides/install.md that need a checkout: wheels are collected, and installed without an index."""

import re
from pathlib import Path

import pytest

from pages import blocks, run, surroundings

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "install.md"
WITH_CHECKOUT = re.compile(r"<!-- run with a checkout(?:, exit (\d+))? -->")
DOWNLOAD_S = 300


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_is_installed_from_collected_wheels(tmp_path):
    environ = {**surroundings(), "CHECKOUT": str(ROOT), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    marked = [
        block
        for block in blocks(GUIDE.read_text(encoding="utf-8"), WITH_CHECKOUT)
        if block.status is not None
    ]
    assert len(marked) == 2
    for block in marked:
        status, output = run(block, tmp_path, environ, timeout_s=DOWNLOAD_S)
        assert status == block.status, f"line {block.line} ended with {status}:\n{output}"
    assert output.startswith("paceline, version")
