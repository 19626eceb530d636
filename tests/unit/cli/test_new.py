"""``paceline new``: the files of each kind of project, what is refused, and a project that runs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import requires

import pytest
from click.testing import CliRunner

from examples_list import EXAMPLES, FOLDER
from paceline.cli import new
from paceline.cli.main import cli
from paceline.cli.new import folder
from paceline.cli.new.folder import KINDS, ProjectKind, promised_percent
from paceline.diagnose import lint
from paceline.errors import SetupError, UsageError
from paceline.slurm import profile
from refusals import refusal
from starting import inherited


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_is_an_example_with_all_that_starts_it(tmp_path, kind):
    written = new.create("mine", kind)
    folder = tmp_path / "mine"
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert present == set(written)
    script = (folder / "train.py").read_text()
    assert "examples/" not in script
    assert "    paceline run --nproc-per-node 2 train.py" in script
    assert script.count("train.py") == 4
    tests = (folder / "test_train.py").read_text()
    ast.parse(tests)
    assert f"LEAST_PERCENT = {promised_percent(script)}" in tests
    assert lint.lint([str(folder / "train.py")]).exit_status == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_requirements_are_what_the_script_imports_in_versions_of_this_package(tmp_path, kind):
    new.create("mine", kind)
    lines = (tmp_path / "mine" / "requirements.txt").read_text().splitlines()
    assert lines[0] == "paceline[torch]"
    declared = {line.partition(";")[0].strip() for line in requires("paceline")}
    assert set(lines[1:]) <= declared
    assert all(">=" in line for line in lines[1:])
    modules = {"sklearn": "scikit-learn", "torchmetrics": "lightning"}
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse((tmp_path / "mine" / "train.py").read_text()))
        for name in _imported_by(node)
    } - {*sys.stdlib_module_names, "torch", "paceline", "rich"}
    assert {modules.get(name, name) for name in imported} <= {
        line.partition(">=")[0] for line in lines
    }


def _imported_by(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) else []


def test_the_profile_is_valid(tmp_path):
    new.create("mine", "session")
    path = tmp_path / "mine" / folder.PROFILE
    text = path.read_text()
    read = profile.read(text, name="cluster", path=str(path), environ={})
    assert read.slurm["time"]
    every_line = re.sub(r"^# (?=\S+ = )", "", text, flags=re.MULTILINE)
    read = profile.read(every_line, name="cluster", path=str(path), environ={})
    assert read.slurm["gpus_per_node"] == "4"


def test_a_kind_may_have_further_files():
    kind = ProjectKind("big.py", "a net", (), parts=("big_data.py",))
    sources = {
        "big.py": '"""examples/big.py\n\nAt least 70 % is right."""\n',
        "big_data.py": "x = 1",
    }
    files = folder.files(kind, sources, name="mine", requirements=["a", "b"])
    assert files["big_data.py"] == "x = 1"
    assert files["requirements.txt"] == "a\nb\n"
    assert files["train.py"].startswith('"""train.py')
    assert "LEAST_PERCENT = 70" in files["test_train.py"]


def test_an_example_without_a_promise_is_a_mistake_of_ours():
    with pytest.raises(ValueError, match="promises no accuracy"):
        promised_percent("accuracy of at least 95 %")


def test_every_kind_comes_from_an_example_that_is_tested():
    assert {kind.script for kind in KINDS.values()} <= {
        example.script for example in EXAMPLES.values()
    }
    assert all((FOLDER / part).is_file() for kind in KINDS.values() for part in kind.parts)


@pytest.mark.parametrize(
    ("target", "kind", "says"),
    [
        ("my model", "session", "fix: paceline new my-model"),
        ("größe", "session", "fix: paceline new gr-e"),
        ("-x", "session", "fix: paceline new x"),
        ("", "session", "'' is not a name"),
        ("/", "session", "'/' is not a name"),
        ("..", "session", "is not"),
        ("a\x1b[31m", "session", r"a\\x1b[31m"),
        ("mine", "lightening", "fix: --from lightning"),
        ("mine", "Session", "fix: --from session"),
        ("mine", "jax", "kinds: session, trainer, ddp"),
        ("file", "session", "file is a file"),
        ("full", "session", "in it: train.py"),
        (".", "session", "the folder . is not empty"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, target, kind, says):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "train.py").write_text("mine")
    finding = refusal(UsageError, new.create, target, kind)
    assert finding.name == "option-invalid"
    text = finding.render()
    assert says in text
    assert max(map(len, text.splitlines())) <= 80
    assert (tmp_path / "full" / "train.py").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]


def test_a_folder_that_cannot_be_made_is_a_finding(tmp_path):
    (tmp_path / "file").touch()
    finding = refusal(SetupError, new.create, "file/mine", "ddp")
    assert finding.name == "folder-not-writable"
    assert str(tmp_path / "file") in finding.where


def test_a_new_repository_is_an_empty_folder(tmp_path):
    (tmp_path / ".git").mkdir()
    new.create(".", "ddp")
    assert (tmp_path / "README.md").read_text().startswith(f"# {tmp_path.name}\n")


def test_an_installation_without_examples_is_a_finding(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.version.FOLDER", str(tmp_path / "lib" / "paceline"))
    assert "digits_ddp.py" in refusal(SetupError, new.create, "mine", "ddp").what
    assert not (tmp_path / "mine").exists()


def test_examples_of_an_installed_wheel_are_beside_the_package(tmp_path, monkeypatch):
    """As ``sources`` in pyproject.toml puts them there."""
    package = tmp_path / "lib" / "paceline"
    (package / "examples").mkdir(parents=True)
    text = (FOLDER / "digits_ddp.py").read_text()
    (package / "examples" / "digits_ddp.py").write_text(text + "# of the wheel\n")
    monkeypatch.setattr("paceline.version.FOLDER", str(package))
    new.create("mine", "ddp")
    assert (tmp_path / "mine" / "train.py").read_text().endswith("# of the wheel\n")


def test_the_command_prints_the_folder_and_what_comes_next():
    action = cli.main(["new", "mine", "--from", "ddp"], prog_name="paceline", standalone_mode=False)
    result = CliRunner().invoke(_called(action))
    assert result.exit_code == 0
    assert result.stdout == "mine\n"
    assert "  cd mine\n" in result.stderr
    assert "  paceline run --nproc-per-node 2 train.py\n" in result.stderr


def _called(action):
    """Return a command that carries out an action."""
    import click

    return click.command()(lambda: action())


def test_the_help_names_every_kind():
    shown = " ".join(CliRunner().invoke(cli, ["new", "--help"]).output.split())
    names = list(KINDS)
    assert f"{', '.join(names[:-1])} or {names[-1]}" in shown


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", KINDS)
def test_a_written_project_passes_its_test(tmp_path, kind):
    example = next(each for each in EXAMPLES.values() if each.script == KINDS[kind].script)
    example.skip_without_package()
    new.create("mine", kind)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "mine"],
        env={**inherited(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout
