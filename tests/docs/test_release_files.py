"""What surrounds a release: one version, forms for issues, CI, and the page of what is promised."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
import yaml

from paceline import __version__
from paceline.measure import bench_file
from paceline.rundir import events, files, identity, manifest, sweeps
from paceline.slurm import record
from repository_scripts import script

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
FORMATS = {
    "events.jsonl": events.EVENT_VERSION,
    "training.json": identity.VERSION,
    "speed.json": files.SPEED_VERSION,
    "job.json": record.VERSION,
    "sweep.json": sweeps.VERSION,
    "bench.json": bench_file.VERSION,
    "manifest of a checkpoint": manifest.VERSION,
}


@pytest.fixture(scope="module")
def release():
    with script("release") as module:
        yield module


def test_the_version_is_the_same_everywhere(release):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert release.version() == __version__ == str(citation["version"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


def test_the_citation_has_what_its_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == "Apache-2.0"


def test_hosted_ci_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step for step in job["steps"] if step.get("run", "").endswith(".ci/run")]
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_is_one(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert ids
    assert len(ids) == len(set(ids))
    for field in form["body"]:
        assert field["type"] in KINDS
        assert field["type"] == "markdown" or field["attributes"]["label"]
        assert field["type"] != "dropdown" or field["attributes"]["options"]


def test_bugs_and_false_alarms_ask_what_explain_says():
    assert {path.stem for path in FORMS} == {"bug", "healthy-run-accused", "question"}
    for name in ("bug", "healthy-run-accused"):
        text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text()
        assert "paceline explain paceline-runs/NAME" in text


@pytest.mark.parametrize(("name", "version"), FORMATS.items(), ids=FORMATS)
def test_the_stability_page_has_the_version_of_each_format(name, version):
    page = (ROOT / "docs" / "reference" / "stability.md").read_text()
    (row,) = [
        line for line in page.splitlines() if re.match(rf"\| `?{re.escape(name)}`?[ ,]", line)
    ]
    assert row.endswith(f"| {version} |")


def test_the_changelog_has_the_sections_of_its_form():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    titles = [line for line in lines if line.startswith("## ")]
    assert titles[0] == "## [Unreleased]" or titles[0].startswith(f"## [{__version__}]")
    for title in titles[1:]:
        assert re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", title)
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_readme_has_a_program_to_try(release):
    name, text = release.readme_program()
    assert name.endswith(".py")
    compile(text, name, "exec", dont_inherit=True)


def wheel_of(folder, names):
    path = folder / "paceline.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return path


def test_a_wheel_has_all_files_of_the_package_and_no_others(release, tmp_path):
    names = list(release.sources())
    metadata = f"paceline-{__version__}.dist-info/METADATA"
    assert release.misfits(wheel_of(tmp_path, [*names, metadata])) == []
    missing = "paceline/diagnose/catalogue/texts/port-in-use.md"
    more = ["tests/unit/test_env.py", "paceline/left_over.py"]
    wheel = wheel_of(tmp_path, [*(name for name in names if name != missing), *more])
    assert release.misfits(wheel) == [
        f"is not in the wheel: {missing}",
        "does not belong in the wheel: paceline/left_over.py",
        "does not belong in the wheel: tests/unit/test_env.py",
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_that_is_built_has_no_tests_and_all_texts(release, tmp_path):
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    wheel = release.build(tmp_path / "dist", isolated=False)
    assert release.misfits(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = [name for name in names if name.endswith("METADATA")]
        metadata = archive.read(path).decode()
        (entries,) = [name for name in names if name.endswith("entry_points.txt")]
        commands = archive.read(entries).decode()
    assert "paceline/diagnose/catalogue/texts/port-in-use.md" in names
    assert "paceline/py.typed" in names
    assert "paceline/examples/digits.py" in names
    assert f"\nVersion: {__version__}\n" in metadata
    assert "paceline = paceline.cli.entry:main" in commands
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_editable_install_has_no_copy_of_the_examples(tmp_path, monkeypatch):
    backend = pytest.importorskip("hatchling.build")
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / backend.build_editable(str(tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        (line,) = archive.read("_paceline.pth").decode().splitlines()
    assert names == ["_paceline.pth"]
    assert Path(line) == ROOT / "src"
