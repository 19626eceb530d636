"""The world of this process: what its environment says, checked on this machine."""

import os
import socket
import subprocess
import sys

import pytest

from paceline.errors import UsageError
from paceline.machine import own_world
from recorded import environment
from refusals import refusal


def started_as(monkeypatch, name, **changes):
    for variable, value in environment(name, **changes).items():
        monkeypatch.setenv(variable, value)


@pytest.mark.parametrize("here", ["127.0.0.1", "localhost", "no-such-host.invalid"])
def test_a_head_that_is_here_or_unknown_here_is_not_refused(here):
    own_world.require_head_here(here, "the host of mpirun")


def test_the_first_task_refuses_a_head_elsewhere_and_the_others_do_not(monkeypatch):
    elsewhere = "1.0;tcp://198.51.100.7:4000"  # an address for documentation, RFC 5737
    started_as(monkeypatch, "open-mpi-4-two-hosts", OMPI_MCA_orte_hnp_uri=elsewhere)
    assert own_world.read().master_addr == "198.51.100.7"
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    finding = refusal(UsageError, own_world.read)
    assert finding.name == "master-addr-wrong"
    assert socket.gethostname() in finding.fix
    monkeypatch.setenv("MASTER_ADDR", "198.51.100.7")  # what the user says is not doubted
    assert own_world.read().master_addr == "198.51.100.7"


def test_no_proxy_of_mpiexec_is_a_parent_of_this_process():
    assert own_world.mpi_proxy_pid() == 0


def test_the_proxy_of_mpiexec_is_found_behind_a_shell(tmp_path):
    """All tasks of a start have it as a parent, also where a script is between."""
    proxy = tmp_path / "hydra_pmi_proxy"
    proxy.symlink_to(os.path.realpath("/bin/bash"))
    asks = "from paceline.machine import own_world; print(own_world.mpi_proxy_pid())"
    line = f'echo $$; bash -c \'"{sys.executable}" -c "{asks}"; true\'; true'
    ended = subprocess.run([proxy, "-c", line], capture_output=True, text=True, check=True)
    pid, found = ended.stdout.split()
    assert pid == found
