"""The command line: words in, options or one Finding out."""

from __future__ import annotations

import sys

import click
import pytest

from paceline import __version__
from paceline.cli import main as module
from paceline.launch import run as running
from paceline.launch.outcome import resume
from paceline.launch.plan.options import OPTIONS


@pytest.fixture
def asked(monkeypatch):
    """Give words to the command; return the options that a run would be conducted with."""
    for option in OPTIONS:
        monkeypatch.delenv(f"PET_{option.name.upper()}", raising=False)
    got = []
    monkeypatch.setattr(running, "run", lambda options: got.append(options) or 0)

    def ask(*words):
        deed = module.cli.main(["run", *words], prog_name="paceline", standalone_mode=False)
        assert got == [], "nothing may happen before the whole command has been read"
        assert deed() == 0
        return got.pop()

    return ask


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run the whole command as typed; return its exit status and what it printed."""
    monkeypatch.chdir(tmp_path)

    def ask(*words):
        monkeypatch.setattr(sys, "argv", ["paceline", *words])
        monkeypatch.setattr(
            sys.modules["__main__"], "__package__", None
        )  # click names itself after it
        with pytest.raises(SystemExit) as stopped:
            module.main()
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return ask


# --------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("spelling", ["--nproc-per-node", "--nproc_per_node"])
def test_dashes_and_underscores_are_the_same(asked, spelling):
    assert asked(spelling, "2", "train.py").nproc_per_node == "2"
    assert asked(f"{spelling}=2", "train.py").nproc_per_node == "2"


def test_every_option_can_be_typed():
    known = {form for parameter in module.cli.commands["run"].params for form in parameter.opts}
    for option in OPTIONS:
        assert {option.long, f"--{option.name}"} <= known
        assert not option.short or option.short in known


@pytest.mark.parametrize(
    ("words", "script", "arguments"),
    [
        (["train.py"], "train.py", ()),
        (["train.py", "--lr", "1", "--nnodes", "2"], "train.py", ("--lr", "1", "--nnodes", "2")),
        (["--max-restarts", "1", "train.py", "-m", "--help"], "train.py", ("-m", "--help")),
        (["train.py", "-x", "--", "-y"], "train.py", ("-x", "--", "-y")),
        (["--", "train.py", "-x"], "train.py", ("-x",)),
        (["train.py", "", "a b", "--x=1"], "train.py", ("", "a b", "--x=1")),
    ],
)
def test_what_follows_the_script_is_the_scripts(asked, words, script, arguments):
    found = asked(*words)
    assert (found.script, found.script_args) == (script, arguments)
    assert (found.max_nodes, found.module) == (1, False)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["-m", "package.train"], "module", True),
        (["--module", "package.train"], "module", True),
        (["-r", "3", "train.py"], "redirects", "3"),
        (["-t3", "train.py"], "tee", "3"),
        (["--standalone", "train.py"], "standalone", True),
        (["--no-probe", "train.py"], "no_probe", True),
        (["--json", "train.py"], "json", True),
        (["--grace-s", "4", "train.py"], "shutdown_timeout", 4),
        (["--run_dir=out", "train.py"], "run_dir", "out"),
    ],
)
def test_options(asked, words, field, value):
    assert getattr(asked(*words), field) == value


def test_torchruns_variables_are_defaults(asked, monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    monkeypatch.setenv("PET_MAX_RESTARTS", "2")
    found = asked("--max-restarts", "1", "train.py")
    assert (found.nproc_per_node, found.max_restarts) == ("3", 1)


def test_abbreviations_are_torchruns(asked):
    found = asked("--nnode=1", "--nproc-per", "2", "--redirect=3", "train.py", "--nnode=2")
    assert (found.nproc_per_node, found.redirects, found.script_args) == ("2", "3", ("--nnode=2",))


def test_options_keep_the_order_in_which_they_were_typed(asked):
    words = ["--run-dir", "out", "-t3", "--check", "--nproc_per_node=2", "--max-rest", "1"]
    requested = asked(*words, "train.py", "--tee", "2")
    assert requested.typed == (
        ("run_dir", "out"),
        ("tee", "3"),
        ("check", ""),
        ("nproc_per_node", "2"),
        ("max_restarts", "1"),
    )
    assert resume.repeat(requested, run_dir="out") == (
        "paceline run --tee 3 --check --nproc-per-node 2 --max-restarts 1 --run-dir out train.py"
        " --tee 2"
    )


# ------------------------------------------------------------------------------------------ what is printed


@pytest.mark.parametrize("words", [["--version"], ["run", "--version"]])
def test_the_version(command, words):
    assert command(*words) == (0, f"paceline, version {__version__}\n", "")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["run", "--help"], ["run", "-h"]])
def test_help_is_data_on_stdout(command, words):
    status, out, err = command(*words)
    assert (status, err) == (0, "")
    assert out.startswith("Usage: paceline")


def test_help_shows_every_option_with_its_default(command):
    _, out, _ = command("run", "--help-all")
    flat = " ".join(out.split())
    assert [option.long for option in OPTIONS if option.long not in flat] == []
    assert "[SIGTERM,SIGINT,SIGHUP,SIGQUIT]" in flat


@pytest.mark.parametrize(
    ("words", "name", "says"),
    [
        (
            ["run", "--nporc-per-node", "2", "train.py"],
            "option-unknown",
            "did you mean --nproc-per-node?",
        ),
        (["run", "--nproc_per_nodes=2", "x.py"], "option-unknown", "mean --nproc_per_node?"),
        (["run", "-q", "train.py"], "option-unknown", "no option -q"),
        (["run", "--qqqqqq", "x.py"], "option-unknown", "fix: paceline run --help-all lists them"),
        (["jobs", "--qqqqqq"], "option-unknown", "fix: paceline jobs --help lists them"),
        (["checkpoint", "list", "--jsn"], "option-unknown", "did you mean --json?"),
        (["submit", "--constrain", "a", "x.py"], "option-unknown", "did you mean --constraint?"),
        (["submit", "--wrap", "x"], "option-unknown", "--wrap: the script is written by paceline"),
        (["run", "--world", "1,2", "x.py", "-b", "1"], "option-unknown", "; bench, verify, "),
        (
            ["run", "--world", "1,2", "x.py"],
            "option-unknown",
            "fix: paceline bench --world 1,2 x.py",
        ),
        (
            ["bench", "--nproc-per-node", "2", "x.py", "-b", "1"],
            "option-unknown",
            "fix: paceline run --nproc-per-node 2 x.py -b 1\n",
        ),
        (
            ["bench", "--nodes", "2", "--rounds", "1"],
            "option-unknown",
            "paceline submit --nodes ...",
        ),
        (["follow", "--json"], "option-unknown", "fix: paceline follow --help lists them"),
        (["run"], "option-invalid", "paceline run --help"),
        (["run", "--nproc-per-node"], "option-invalid", "--nproc-per-node"),
        (["run", "--nproc-per-node", "0", "train.py"], "option-invalid", "fix: --nproc-per-node 1"),
        (["run", "--standalone=1", "train.py"], "option-invalid", "--standalone"),
        (["run", "--master-port", "70000", "train.py"], "option-invalid", "65535"),
        (["rnu", "train.py"], "option-invalid", "rnu"),
        (["run", "train.py"], "script-missing", "there is no file train.py"),
        (["run", "."], "script-missing", "folder"),
        (
            ["run", "--master", "h", "train.py"],
            "option-unknown",
            "did you mean --master-addr or --master-port?",
        ),
        (
            ["--nproc-per-node", "2", "train.py"],
            "option-unknown",
            "fix: paceline run --nproc-per-node",
        ),
        (["train.py"], "option-invalid", "fix: paceline run train.py"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_misuse_is_one_finding_on_stderr_and_status_2(command, words, name, says):
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    assert err.startswith("error USE")
    assert err.split()[2] == f"{name}:"
    assert says in err
    assert "\n  fix: " in err
    assert "Traceback" not in err


def test_without_words_the_help_is_shown(command):
    status, out, err = command()
    assert (status, err) == (0, "")
    assert out.startswith("Usage: paceline")


def test_ctrl_c_while_the_command_is_read_is_130(command, monkeypatch):
    def interrupted(*_, **__):
        raise click.Abort

    monkeypatch.setattr(module.cli, "main", interrupted)
    assert command() == (130, "", "")


def test_the_launcher_leaves_with_the_runs_status_at_once(command, monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text("")
    left = []

    def leave(status):
        left.append(status)
        raise SystemExit("left")

    monkeypatch.setattr(module.os, "_exit", leave)
    monkeypatch.setattr(running, "run", lambda options: 143)
    assert command("run", "train.py")[0] == "left"
    assert left == [143]


def test_a_rank_that_comes_back_ends_as_its_script_did(command, monkeypatch):
    """A rank is a fork of the launcher: it must leave by SystemExit, so that its atexit handlers run."""
    here = module.os.getpid()
    pids = iter([here, here + 1])
    monkeypatch.setattr(module.os, "getpid", lambda: next(pids))
    monkeypatch.setattr(running, "run", lambda options: 0)
    assert command("run", "train.py")[0] == 0
