"""Keyword arguments become options of the command line; what is no option is refused with a near one."""

from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.functions import api
from refusals import refusal


def refused(**keywords):
    return refusal(UsageError, api.typed_options, keywords)


def test_values_become_what_is_typed():
    assert api.typed_options(
        {
            "nodes": 2,
            "time": "2h",
            "exclusive": True,
            "account": None,
            "no_requeue": False,
            "sbatch": ["--nice=100"],
            "run_dir": Path("here"),
        }
    ) == {
        "nodes": "2",
        "time": "2h",
        "exclusive": True,
        "sbatch": ("--nice=100",),
        "run_dir": "here",
    }
    assert api.typed_options({"sbatch": "--nice=100"}) == {"sbatch": ("--nice=100",)}


def test_a_misspelt_option_has_a_near_one():
    finding = refused(gpu_per_node=2)
    assert (finding.name, finding.fix) == ("option-unknown", "gpus_per_node=")
    assert "functools.partial" in finding.why


@pytest.mark.parametrize("name", ["array", "sweep", "dry_run", "json", "module"])
def test_options_without_meaning_for_a_function_are_unknown(name):
    assert refused(**{name: True}).name == "option-unknown"


@pytest.mark.parametrize("value", [[1], {}, 1j, True])
def test_a_value_of_the_wrong_kind_is_refused(value):
    assert refused(nodes=value).name == "option-invalid"


def test_a_flag_is_true_or_false():
    assert refused(exclusive="yes").name == "option-invalid"


def test_a_machine_without_slurm_obeys_the_launchers_options_only():
    keywords = {"nodes": 2, "time": "2h", "nproc_per_node": 2, "run_dir": "here"}
    assert api.for_machine(keywords) == {"nproc_per_node": "2", "run_dir": "here"}
    with pytest.raises(UsageError):
        api.for_machine({"node": 2})
