"""The documentation site: its pages are in the navigation, its names on one page each, its words spelled right.

tests/browser/test_site.py builds it and looks at every page.
"""

import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MODULES = ("callbacks", "data", "loggers", "logging", "trainer")
TEXTS = "src/paceline/diagnose/catalogue/texts"


@pytest.fixture
def build_site(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("build_site")


def listed(nav):
    """The pages in a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for part in inner for page in listed(part)]


def test_every_page_is_once_in_the_navigation():
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    made = {"project/contributing.md", "project/changelog.md"}
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    of_developers = {page for page in pages if page.startswith("design/")} | {"log.md"}
    entries = Counter(listed(config["project"]["nav"]))
    expected = {*made, *pages - of_developers}
    assert sorted(expected - set(entries)) == [], "these pages need a line in nav of zensical.toml"
    assert sorted(set(entries) - expected) == [], "nav of zensical.toml names pages that are gone"
    assert [page for page, times in entries.items() if times > 1] == []


def test_every_public_name_is_on_one_page():
    import paceline

    places = {}
    for page in (DOCS / "reference" / "api").glob("*.md"):
        for path in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.M):
            module, _, name = path.rpartition(".")
            shown = getattr(importlib.import_module(module), name)
            places.setdefault(id(shown), []).append(path)
    public = {f"paceline.{name}": getattr(paceline, name) for name in paceline.__all__}
    for name in MODULES:
        module = importlib.import_module(f"paceline.{name}")
        public |= {f"paceline.{name}.{each}": getattr(module, each) for each in module.__all__}
    wrong = {
        path: places.get(id(value), [])
        for path, value in public.items()
        if callable(value) and len(places.get(id(value), [])) != 1
    }
    assert wrong == {}, "a public name has one ::: line in docs/reference/api"
    unknown = set(places) - {id(value) for value in public.values()}
    assert unknown == set(), [places[each] for each in unknown]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("docs/guides/run.md", "[a](slurm.md#x)", "[a](slurm.md#x)"),
        ("docs/guides/run.md", "[a](#x) [b](https://x.org)", "[a](#x) [b](https://x.org)"),
        ("docs/start.md", "[why](design)", "[why](design/index.md)"),
        ("docs/explain/x.md", "[why](../design)", "[why](../design/index.md)"),
        ("docs/log.md", "[S](../STYLE.md#code)", "[S](project/style.md#code)"),
        ("CONTRIBUTING.md", "[why](docs/design)", "[why](../design/index.md)"),
        ("CONTRIBUTING.md", "[S](STYLE.md)", "[S](style.md)"),
        (
            "docs/guides/bench.md",
            "[`data-bound`](../reference/findings.md#data-bound)",
            "[`data-bound`](../reference/findings/data-bound.md)",
        ),
        (
            "docs/reference/findings.md",
            f"[`disk-full`](../../{TEXTS}/disk-full.md)",
            "[`disk-full`](findings/disk-full.md)",
        ),
        ("docs/guides/x.md", "[all](../../tests/pages.py)", "all (`tests/pages.py`)"),
        ("docs/guides/x.md", "`[a](../../b.py)`", "`[a](../../b.py)`"),
        ("docs/guides/x.md", "```\n[a](../../b.py)\n```", "```\n[a](../../b.py)\n```"),
        ("docs/x.md", "Two:\n- a\n  b\n- c", "Two:\n\n- a\n  b\n- c"),
        ("docs/x.md", "- a\n  b\n- c\n\n# D\n- e", "- a\n  b\n- c\n\n# D\n- e"),
        ("docs/x.md", "| `a\\|b` | c\\|d |", "| `a|b` | c\\|d |"),
        ("docs/x.md", "`grep 'a\\|b'`", "`grep 'a\\|b'`"),
        ("docs/x.md", "`model[0]` [a\nb](../c.py)", "`model[0]` a\nb (`c.py`)"),
    ],
)
def test_pages_are_changed_for_the_site(build_site, path, text, expected):
    assert build_site.site_text(text, path) == expected


def test_language_models_get_what_to_call_and_every_page(build_site):
    text = build_site.llms_text()
    assert text.startswith("# paceline\n\n> ") and "## What never to do" in text
    assert "- [Lint job scripts and training scripts](guides/lint.html)" in text
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    assert text.count("](") == len(
        re.findall(r'"[\w/-]+\.md"', str(config["project"]["nav"]).replace("'", '"'))
    )


def test_a_finding_has_a_page_with_its_references_as_links(build_site):
    page = build_site.finding_page("data-bound")
    assert page.startswith("# data-bound\n\n`RUN049` · A run that failed")
    assert re.search(r"^- \[[^/]+\]\(\.\./\.\./guides/tune\.md\)$", page, re.M)
    assert "\n- https://docs.pytorch.org/" in page


def test_words_are_spelled_right():
    pages = [path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"))]
    command = [sys.executable, "-m", "codespell_lib", *map(str, pages), TEXTS]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("guide", ["session", "hangs", "exercises"])
def test_a_long_guide_is_short_until_its_details_are_opened(guide):
    text = (DOCS / "guides" / f"{guide}.md").read_text(encoding="utf-8")
    shown = re.sub(r'(?ms)^<details markdown="1">\n<summary>.+?^</details>\n', "", text)
    assert "details>" not in shown
    assert len(shown.split()) <= 1000


@pytest.mark.parametrize("page", sorted((DOCS / "guides").glob("from-*.md")), ids=lambda p: p.stem)
def test_a_page_for_users_of_others_says_first_what_to_install(page):
    intro, _, programs = page.read_text(encoding="utf-8").partition("```python\n")
    installed = {*re.findall(r"\w+", intro.partition("pip install")[2]), "paceline"}
    programs = programs.replace("sklearn", "examples")
    imported = set(re.findall(r"^(?:import|from) (\w+)", programs, re.M))
    assert imported - {*sys.stdlib_module_names, "before", "data", "texts"} <= installed
