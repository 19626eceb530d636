"""What submit is asked for: values, contradictions, and a profile under the command line."""

from __future__ import annotations

import pytest

from paceline.errors import UsageError
from paceline.slurm import request
from paceline.slurm.profile import Profile
from refusals import refusal


def parse(script="train.py", *args, profile=None, **typed):
    return request.parse(script, args, typed=typed, profile=profile or Profile())


def refused(**typed):
    return refusal(UsageError, parse, **typed)


def test_nothing_typed_is_one_node_and_all_else_is_left_to_slurm():
    asked = parse()
    assert asked.directives() == [("nodes", "1"), ("ntasks-per-node", "1")]
    assert (asked.requeue, asked.on_node_loss, asked.grace_s, asked.signal_s) == (
        True,
        "requeue",
        120,
        180,
    )
    assert asked.job_name == "train"


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("90", "01:30:00"),
        ("90m", "01:30:00"),
        ("2h", "02:00:00"),
        ("1d", "1-00:00:00"),
        ("45s", "00:00:45"),
        ("10:30", "00:10:30"),
        ("1:02:03", "01:02:03"),
        ("2-12", "2-12:00:00"),
        ("2-12:30", "2-12:30:00"),
        ("1.5h", "01:30:00"),
        ("UNLIMITED", "UNLIMITED"),
        ("infinite", "UNLIMITED"),
    ],
)
def test_times_are_read_as_sbatch_reads_them(typed, shown):
    assert dict(parse(time=typed).directives())["time"] == shown


@pytest.mark.parametrize(
    ("time", "grace_s", "margin_s"),
    [
        (None, 120, 60),
        ("1d", 120, 60),
        ("8m", 120, 60),
        ("4m", 60, 60),
        ("2m", 30, 30),
        ("1m", 15, 15),
        ("10s", 15, 15),
        ("unlimited", 120, 60),
    ],
)
def test_the_grace_is_a_quarter_of_a_short_time_and_the_rest_for_the_script_no_more(
    time, grace_s, margin_s
):
    asked = parse(**({"time": time} if time else {}))
    assert (asked.grace_s, asked.signal_s) == (grace_s, grace_s + margin_s)


def test_cpus_of_a_node_follow_from_its_gpus():
    asked = parse(gpus_per_node="a100:4", cpus_per_gpu="8")
    assert (asked.cpus, asked.num_gpus, dict(asked.directives())["cpus-per-task"]) == (32, 4, "32")
    assert parse(cpus_per_node="16").cpus == 16


@pytest.mark.parametrize(
    ("typed", "count"),
    [("a100:4", 4), ("1g.10gb:1", 1), ("3g.40gb:2", 2), ("1g.10gb+me:1", 1), ("4", 4)],
)
def test_kinds_of_gpus_may_begin_with_a_figure(typed, count):
    asked = parse(gpus_per_node=typed, cpus_per_gpu="2")
    assert (asked.gpus, asked.num_gpus, asked.cpus) == (typed, count, 2 * count)
    assert dict(asked.directives())["gpus-per-node"] == typed


def test_what_is_handed_on_is_as_typed_but_for_the_grace():
    asked = parse(grace_s="60", hang_timeout="300", module=True, tee="3")
    assert asked.forwarded == (("hang_timeout", "300"), ("module", ""), ("tee", "3"))
    assert asked.grace_s == 60
    assert parse(shutdown_timeout="60").grace_s == 60


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        ({"nodes": "0"}, "--nodes 0"),
        ({"nodes": "2-1"}, "MIN not above MAX"),
        ({"nodes": ""}, "--nodes"),
        ({"gpus_per_node": "-4"}, "--gpus-per-node -4"),
        ({"gpus_per_node": "4:a100"}, "4:a100"),
        ({"cpus_per_node": "0"}, "--cpus-per-node 0"),
        ({"cpus_per_gpu": "8"}, "no effect"),
        ({"cpus_per_gpu": "8", "cpus_per_node": "8"}, "exclude each other"),
        ({"mem": "lots"}, "--mem lots"),
        ({"time": "0"}, "--time 0"),
        ({"time": "2h30"}, "--time 2h30"),
        ({"time": "1h30m"}, "--time 1h30m"),
        ({"account": ""}, "needs a value"),
        ({"partition": "a\tb"}, "control characters"),
        ({"on_node_loss": "requeu"}, "--on-node-loss"),
        ({"on_node_loss": "requeue", "no_requeue": True}, "exclude each other"),
        ({"follow": True, "dry_run": True}, "exclude each other"),
        ({"sbatch": ["--time=3"]}, "sets --time itself"),
        ({"sbatch": ["-N2"]}, "sets --nodes itself"),
        ({"sbatch": ["--ntasks=8"]}, "has no --ntasks"),
        ({"sbatch": ["--constraint"]}, "needs a value"),
        ({"sbatch": ["--hold=yes"]}, "takes no value"),
        ({"sbatch": [""]}, "begins with a dash"),
        ({"sbatch": ["--foo!bar"]}, "begins with a dash"),
        ({"sbatch": ["--\udcff"]}, "control characters"),
        ({"grace_s": "a"}, "--grace-s a"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(typed, what):
    finding = refused(**typed)
    assert finding.name in ("option-invalid", "option-contradicted")
    assert what in finding.what
    assert finding.fix or "control" in what


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--constraint=a100", ("constraint", "a100")),
        ("-Ca100", ("constraint", "a100")),
        ("-C a100", ("constraint", "a100")),
        ("--exclusive", ("exclusive", None)),
        ("--exclusive=user", ("exclusive", "user")),
        ("-H", ("hold", None)),
        ("--gres=nvme:1", ("gres", "nvme:1")),
        ("--comment=a = b", ("comment", "a = b")),
        ("--of-a-plugin=x", ("of-a-plugin", "x")),
        ("--of-a-plugin", ("of-a-plugin", None)),
    ],
)
def test_options_of_sbatch_are_read_as_sbatch_would(typed, read):
    assert parse(sbatch=[typed]).sbatch == (read,)


SITE = Profile(
    name="site",
    slurm={
        "nodes": "2",
        "gpus_per_node": "4",
        "cpus_per_gpu": "8",
        "time": "4h",
        "no_requeue": True,
    },
    sbatch=(("constraint", "a100"), ("exclusive", None)),
    run={"hang_timeout": "600", "check_finite": True},
)


def test_a_profile_fills_in_what_is_not_typed():
    asked = parse(profile=SITE)
    assert (asked.nodes, asked.gpus, asked.cpus, asked.time_s, asked.requeue) == (
        "2",
        "4",
        32,
        14400,
        False,
    )
    assert asked.sbatch == SITE.sbatch
    assert asked.forwarded == (("hang_timeout", "600"), ("check_finite", ""))
    assert asked.on_node_loss == "fail"


def test_what_is_typed_counts_more_than_a_profile():
    asked = parse(
        profile=SITE,
        nodes="1",
        requeue=True,
        cpus_per_node="16",
        sbatch=["--constraint=h100"],
        hang_timeout="60",
    )
    assert (asked.nodes, asked.requeue, asked.cpus, asked.cpus_per_gpu) == ("1", True, 16, 0)
    assert asked.sbatch == (("exclusive", None), ("constraint", "h100"))
    assert dict(asked.forwarded)["hang_timeout"] == "60"


def test_what_sbatch_calls_the_same_becomes_a_line_as_typed():
    asked = parse(
        qos="long",
        constraint="a100|h100",
        dependency="afterok:12:13_4,singleton",
        begin="now+2hours",
        mail_type="END,fail",
        mail_user="ada@example.org",
        exclusive=True,
        nodelist="node[1-2]",
        exclude="node3",
        reservation="course",
        sbatch=["--nice=100"],
    )
    assert sorted(asked.sbatch) == [
        ("begin", "now+2hours"),
        ("constraint", "a100|h100"),
        ("dependency", "afterok:12:13_4,singleton"),
        ("exclude", "node3"),
        ("exclusive", None),
        ("mail-type", "END,fail"),
        ("mail-user", "ada@example.org"),
        ("nice", "100"),
        ("nodelist", "node[1-2]"),
        ("qos", "long"),
        ("reservation", "course"),
    ]


def test_a_typed_constraint_replaces_that_of_the_profile():
    site = Profile(sbatch=(("constraint", "a100"), ("exclusive", None)))
    assert parse(profile=site, constraint="h100").sbatch == (
        ("exclusive", None),
        ("constraint", "h100"),
    )


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ({"mail_type": "ENDS"}, "--mail-type END"),
        ({"mail_type": "sometimes"}, "--mail-type END,FAIL"),
        ({"dependency": "12"}, "--dependency afterok:4711"),
        ({"dependency": "afterok"}, "--dependency afterok:4711"),
        ({"dependency": "singleton:4"}, "--dependency afterok:4711"),
        ({"dependency": "aftrok:4"}, "--dependency afterok:4711"),
        ({"qos": " "}, "leave out --qos"),
        ({"begin": ""}, "leave out --begin"),
        ({"qos": "long", "sbatch": ["--qos=short"]}, "leave out --sbatch --qos"),
    ],
    ids=str,
)
def test_what_sbatch_would_misread_is_refused(typed, fix):
    assert refused(**typed).fix == fix


def test_no_gpus_can_be_typed_over_those_of_a_profile():
    asked = parse(profile=SITE, gpus_per_node="0")
    assert (asked.gpus, asked.cpus) == ("", 0)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("a/b/train.py", "train"),
        ("train", "train"),
        ("digits.train", "digits.train"),
        ("-x.py", "-x"),
        ("ü.py", "ü"),
    ],
)
def test_a_job_is_named_after_its_script(script, name):
    assert parse(script).job_name == name


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("--nnodes", "--nodes"),
        ("--gpus", "--gpus-per-node"),
        ("--gres", "--gpus-per-node"),
        ("--comment", "--sbatch --comment=VALUE"),
        ("--hold", "--sbatch --hold"),
        ("-L", "--sbatch --licenses=VALUE"),
        ("-G", "--gpus-per-node"),
    ],
)
def test_an_option_of_sbatch_is_answered_with_the_one_that_is_meant(typed, fix):
    assert request.instead_of_sbatchs(typed) == ("", fix)


@pytest.mark.parametrize("typed", ["-n", "--ntasks", "--ntasks-per-node", "--wrap"])
def test_what_is_proposed_for_an_option_of_sbatch_is_accepted(typed):
    _, fix = request.instead_of_sbatchs(typed)
    assert "--sbatch" not in fix
    if "--nproc-per-node" in fix:
        assert dict(parse(nproc_per_node=fix.split()[1]).forwarded)["nproc_per_node"] == "4"
    else:
        assert fix == "leave it out"


@pytest.mark.parametrize("typed", ["--ntasks=8", "--ntasks-per-node=4"])
def test_and_so_is_what_is_proposed_behind_sbatch(typed):
    finding = refusal(UsageError, parse, sbatch=[typed])
    assert finding.fix == request.instead_of_sbatchs(typed.split("=")[0])[1]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ({}, "15m"),
        ({"hang_timeout": "2h"}, "2h"),
        ({"no_probe": True}, None),
        ({"on_hang": "report"}, None),
    ],
)
def test_a_job_that_hangs_has_a_limit_that_can_be_seen_in_its_script(typed, expected):
    assert dict(parse(**typed).forwarded).get("hang_timeout") == expected
