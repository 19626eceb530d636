"""What holds a run back is named at its end, by ``top``, in its report and in its JSON."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faults.hosts import hosts, slow_loopback
from printed_json import read_json
from starting import paceline

BRAKED = Path(__file__).parent / "scripts" / "braked.py"


def trained(folder, *arguments, before=()):
    """What a run of the braked script on two ranks reports: its JSON and its last lines."""
    options = ("--nproc-per-node", 2, "--run-dir", "run", "--json")
    ended = paceline(folder, "run", *options, BRAKED, *arguments, before=before)
    return read_json("run", ended.stdout.splitlines()[-1]), ended.stderr


def named_everywhere(folder, report, err, *, name, words, fix):
    """Check that a hint is printed at the end, and shown by ``top`` and ``report``."""
    (finding,) = report["findings"]
    assert (finding["name"], finding["severity"]) == (name, "hint")
    assert f"hint {finding['code']} {name}: {words}" in err
    assert f"  fix: {fix}" in err
    shown = read_json("top", paceline(folder, "top", "run", "--once", "--json").stdout)
    assert [found["name"] for found in shown["findings"]] == [name]
    reported = paceline(folder, "report", "run", "--text").stdout
    assert f"hint {finding['code']} {name}: {words}" in reported


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_dataset_that_sleeps_is_named(tmp_path):
    arguments = ("data", 4, 1600)  # 200 steps that wait 60 ms and compute 20 ms
    report, err = trained(tmp_path, *arguments)
    named_everywhere(
        tmp_path,
        report,
        err,
        name="data-bound",
        words="waiting for data ",
        fix=f"paceline tune {BRAKED} {' '.join(map(str, arguments))}",
    )
    (share,) = re.findall(r"data-bound: waiting for data (\d+)% of a step", err)
    assert 55 < int(share) < 85


def test_a_short_run_that_waits_for_data_gets_a_line_and_no_finding(tmp_path):
    report, err = trained(tmp_path, "data", 4, 200)  # 25 steps
    assert report["findings"] == []
    assert re.search(r"paceline: waiting for data \d+% of a step: paceline tune ", err)


@pytest.mark.slow
def test_a_slow_rank_is_named(tmp_path):
    report, err = trained(tmp_path, "slow", 4, 400)
    named = report["summary"]["step"]["named"]
    assert (named["rank"], named["stage"]) == (1, "forward")
    assert 0.01 < named["seconds"] < 0.03  # it sleeps 20 ms longer
    assert re.search(r"rank 1 on \S+ takes [\d.]+ ms longer a step than the others: its", err)
    assert report["findings"] == []


@pytest.mark.namespaces
@pytest.mark.timeout(120)
def test_a_slow_link_is_named(tmp_path):
    with hosts(1) as (host,):
        slow_loopback(host, "200mbit")
        report, err = trained(tmp_path, "link", 4, 400, before=host.inside([]))
    named_everywhere(
        tmp_path,
        report,
        err,
        name="communication-bound",
        words="waiting for gradients ",
        fix=f"paceline bench {BRAKED} link 4 400",
    )


@pytest.mark.slow
def test_a_run_that_computes_gets_no_hint(tmp_path):
    report, err = trained(tmp_path, "none", 4, 400)
    assert report["findings"] == []
    assert "waiting for data" not in err
    assert "hint" not in err
