"""Directives as sbatch reads them, and what they come to."""

import pytest

from paceline.diagnose.lint.job import judge
from paceline.diagnose.lint.job.allocation import (
    count_gpus,
    describe,
    gpus_of_gres,
    slurm_variables,
)
from paceline.diagnose.lint.job.checks.directives import count_hosts
from paceline.diagnose.lint.job.directives import parse, split
from paceline.diagnose.lint.job.sbatch_options import SRUN, canonical, takes_value


def job(*options):
    return describe(
        parse("#!/bin/bash\n" + "".join(f"#SBATCH {option}\n" for option in options), set())
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" --nodes=2 -c 8", ["--nodes=2", "-c", "8"]),
        (" --job-name='a b' # a comment", ["--job-name=a b"]),
        (' --comment="x # y" -n 1', ["--comment=x # y", "-n", "1"]),
        (" --mem=4G#comment", ["--mem=4G"]),
        (" --name=a\\ b", ["--name=a b"]),
        ("", []),
    ],
)
def test_a_directive_is_split_as_sbatch_does(text, words):
    assert split(text) == (words, True)


def test_a_quote_that_is_not_closed_is_told():
    assert split(" --job-name='a b") == (["--job-name=a b"], False)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("nodes", "nodes"),
        ("N", "nodes"),
        ("tasks-per-node", "ntasks-per-node"),
        ("gpus-per-n", "gpus-per-node"),
        ("gpus-per", ""),
        ("workdir", "chdir"),
        ("partition", "partition"),
        ("ntask-per-node", ""),
    ],
)
def test_long_short_and_abbreviated_names_are_known(typed, name):
    assert canonical(typed) == name


def test_srun_has_options_of_its_own():
    assert (canonical("K", SRUN), canonical("W", SRUN), takes_value("wait", SRUN)) == (
        "kill-on-bad-exit",
        "wait",
        True,
    )
    assert (takes_value("wait"), takes_value("kill-on-bad-exit", SRUN)) == (False, False)


def test_only_real_directives_in_the_head_count():
    source = "#!/bin/bash\n##SBATCH -N 9\n# SBATCH -N 8\n#sbatch -N 7\n#SBATCH -N 2\n\ncd x\n#SBATCH -N 6\n"
    found = parse(source, set())
    assert [(d.name, d.value, d.line) for d in found.active] == [("nodes", "2", 5)]
    assert [(d.value, d.line) for d in found.late] == [("6", 8)]
    assert found.lower == [(4, "-N 7")]


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:4", 4),
        ("gpu", 1),
        ("gpu:a100", 1),
        ("gpu:a100:4", 4),
        ("gpu:h100:4(S:0-1)", 4),
        ("gpu:a100_3g.20gb:2", 2),
        ("gpu:v100:1,gpu:a100:1", 2),
        ("gpu:2,nvme:100", 2),
        ("craynetwork:1", 0),
        ("gpumem:80G", 0),
    ],
)
def test_gpus_of_a_gres(text, gpus):
    assert gpus_of_gres(text) == gpus


@pytest.mark.parametrize(
    ("text", "gpus"), [("4", 4), ("a100:4", 4), ("v100:2,a100:1", 3), ("a100", None)]
)
def test_gpus_of_an_option(text, gpus):
    assert count_gpus(text) == gpus


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4"], (2, 4, 4)),
        (["--nodes=2", "--ntasks=8", "--gpus-per-node=4"], (2, 4, 4)),
        (["--nodes=4", "--ntasks=4", "--gpus-per-task=8"], (4, 1, 8)),
        (["--ntasks=8", "--ntasks-per-node=4", "--gpus=8"], (2, 4, 4)),
        (["--ntasks=8", "--gpus-per-task=1"], (None, None, None)),
        (["--nodes=2-4", "--gres=gpu:2"], (None, 1, 2)),
        (["-N2", "-n 2", "-G a100:16"], (2, 1, 8)),
        (["--nodes=2", "--gpus-per-socket=2"], (2, 1, None)),
        (["--gres=gpu:1"], (1, 1, 1)),
        (["--nodes=2", "--gres=dcu:4"], (2, 1, None)),
        (["--nodes=2", "--gres=gpu:4", "--gpus-per-node=2"], (2, 1, None)),
        (["--nodes=2", "--ntasks-per-node=4", "--ntasks=16", "--gres=gpu:4"], (2, None, 4)),
    ],
)
def test_nodes_tasks_and_gpus_follow_from_the_directives(options, expected):
    found = job(*options)
    assert (found.nodes, found.tasks_per_node, found.gpus_per_node) == expected


def test_nothing_is_concluded_from_a_heterogeneous_job():
    found = job("--nodes=1", "hetjob", "--nodes=2")
    assert (found.mixed, slurm_variables(found)) == (True, {})


def test_slurm_sets_some_variables_only_if_their_option_is_given():
    found = slurm_variables(job("--nodes=2", "--gres=gpu:4"))
    assert found["SLURM_NNODES"] == "2"
    assert found["SLURM_GPUS_ON_NODE"] == "4"
    assert not {"SLURM_GPUS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK"} & set(found)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", 1),
        ("a,b", 2),
        ("a[1-3,7],b", 5),
        ("r[1-2]n[01-04]", 8),
        ("/path/hosts", None),
        ("a[x-y]", None),
    ],
)
def test_hosts_of_a_list(text, hosts):
    assert count_hosts(text) == hosts


def test_a_step_without_tasks_is_no_division_by_zero():
    directives = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4\n"
    findings = judge(directives + "srun --ntasks=0 python fit.py\n", "job.sbatch")
    assert "time-missing" in {finding.name for finding in findings}
