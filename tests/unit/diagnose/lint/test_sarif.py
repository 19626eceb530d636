"""SARIF: what the published schema and GitHub's code scanning require of a log."""

import json
from urllib.parse import urlsplit

import pytest

from paceline import __version__
from paceline.codes import CODES
from paceline.diagnose.lint import lint
from paceline.diagnose.lint.report import CheckedFile, LintReport
from paceline.diagnose.lint.sarif import LEVELS, to_sarif, uri_of
from paceline.errors import Finding

HERE = "/home/project"
PORT = Finding("fixed-port", "the port is 29500", where="a b/job.sh:7", severity="hint")
TWICE = Finding("double-launch", "x", where="a b/job.sh:3", why="they fight", fix="one each")
TABLE = Finding("input-unreadable", "t.csv is neither", where="t.csv", severity="hint")


def run_of(*files):
    return to_sarif(LintReport(files), HERE)["runs"][0]


def assert_code_scanning_takes(log):
    """GitHub's rules: all that it requires of a log, and of the standard what it relies on."""
    assert log["version"] == "2.1.0"
    assert urlsplit(log["$schema"]).scheme == "https"
    assert set(log) == {"$schema", "version", "runs"}
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["semanticVersion"]) == ("paceline", __version__)
    rules = driver["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["id"] == CODES[rule["name"]]
        texts = [rule["shortDescription"]["text"], rule["fullDescription"]["text"]]
        assert all(0 < len(text) <= 1024 for text in texts)
        assert rule["help"]["text"]
        assert rule["help"]["markdown"]
        assert rule["defaultConfiguration"]["level"] in LEVELS.values()
        assert rule["properties"]["problem.severity"] in ("error", "warning", "recommendation")
    assert len(run["results"]) <= 25_000
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"].strip()
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["region"]["startLine"] >= 1
        uri = place["artifactLocation"]["uri"]
        assert " " not in uri
        assert not uri.startswith(("/", ".."))
    (invocation,) = run["invocations"]
    assert isinstance(invocation["executionSuccessful"], bool)


def test_a_report_without_findings_is_a_log():
    log = to_sarif(LintReport((CheckedFile("train.py", ()),)), HERE)
    assert_code_scanning_takes(log)
    run = log["runs"][0]
    assert (run["results"], run["tool"]["driver"]["rules"]) == ([], [])
    assert run["invocations"][0]["executionSuccessful"] is True


def test_a_finding_becomes_a_result_with_its_rule():
    log = to_sarif(LintReport((CheckedFile("a b/job.sh", (PORT, TWICE)),)), HERE)
    assert_code_scanning_takes(log)
    first, second = log["runs"][0]["results"]
    assert (first["ruleId"], first["level"]) == ("JOB001", "error")
    assert first["message"]["text"] == (
        "x\nWhy: they fight\nfix: one each\nmore: paceline explain JOB001"
    )
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "a%20b/job.sh"},
        "region": {"startLine": 3},
    }
    assert (second["ruleId"], second["level"]) == ("JOB034", "note")


def test_a_rule_has_the_page_and_no_address():
    run = run_of(CheckedFile("job.sh", (PORT,)))
    (rule,) = run["tool"]["driver"]["rules"]
    assert rule["name"] == "fixed-port"
    assert "What to do" in rule["help"]["text"]
    assert "**What to do**" in rule["help"]["markdown"]
    assert "helpUri" not in rule


def test_a_rule_counts_as_its_gravest_finding():
    grave = Finding("fixed-port", "it is taken", where="b.sh:1", severity="warning")
    run = run_of(CheckedFile("a.sh", (PORT,)), CheckedFile("b.sh", (grave,)))
    (rule,) = run["tool"]["driver"]["rules"]
    assert rule["defaultConfiguration"] == {"level": "warning"}
    assert [result["level"] for result in run["results"]] == ["note", "warning"]


def test_a_file_that_was_not_judged_is_a_notification():
    """A result needs a line, and nobody would see the file in code scanning."""
    missing = Finding("input-unreadable", "x.sh cannot be read", where="x.sh")
    run = run_of(CheckedFile("x.sh", (missing,), unreadable=True), CheckedFile("t.csv", (TABLE,)))
    (invocation,) = run["invocations"]
    assert run["results"] == []
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (False, 2)
    levels = [each["level"] for each in invocation["toolExecutionNotifications"]]
    assert levels == ["error", "note"]


def test_a_hint_about_a_file_is_no_failed_execution():
    (invocation,) = run_of(CheckedFile("t.csv", (TABLE,)))["invocations"]
    assert (invocation["executionSuccessful"], invocation["exitCode"]) == (True, 0)


def test_code_in_a_message_is_no_link():
    code = Finding("sampler-missing", "x = layers[0](x), sizes[1]", where="t.py:1")
    (result,) = run_of(CheckedFile("t.py", (code,)))["results"]
    assert result["message"]["text"].startswith("x = layers\\[0\\](x), sizes[1]\n")


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("train.py", "train.py"),
        ("./jobs/../train.py", "train.py"),
        ("/home/project/jobs/a.sh", "jobs/a.sh"),
        ("/data/a b.sh", "file:///data/a%20b.sh"),
        ("../other/a.sh", "file:///home/other/a.sh"),
        ("jobs/größe#1.sh", "jobs/gr%C3%B6%C3%9Fe%231.sh"),
        ("-", "stdin"),
    ],
)
def test_paths_are_relative_to_the_folder(name, uri):
    assert uri_of(name, HERE) == uri


@pytest.fixture
def typed(typed, monkeypatch, tmp_path):
    """The whole command, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return typed


def test_the_command_prints_a_log_and_ends_as_without(typed, tmp_path):
    job = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\npython train.py\n"
    (tmp_path / "job.sbatch").write_text(job)
    status, out, err = typed("lint", "--sarif", "job.sbatch")
    assert (status, err) == (lint(["job.sbatch"]).exit_status, "")
    log = json.loads(out)
    assert_code_scanning_takes(log)
    assert "missing-srun" in [rule["name"] for rule in log["runs"][0]["tool"]["driver"]["rules"]]


def test_two_formats_are_refused(typed):
    status, out, err = typed("lint", "--sarif", "--json", "job.sbatch")
    assert (status, out) == (2, "")
    assert "option-contradicted" in err
