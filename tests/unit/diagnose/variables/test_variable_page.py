"""The page of variables is what the tables say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "scripts" / "variables_page.py"


def test_the_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("variables_page", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "run scripts/variables_page.py"
