"""How the parts come together: copies between GPUs where they are due, and what was not read."""

import time

import pytest

from paceline.diagnose.doctor.collectors import gather as room
from paceline.diagnose.doctor.collectors import gpus, host, peers
from paceline.diagnose.doctor.facts_gpu import Driver, Gpu, GpuPair, GpuProcess
from paceline.machine import software
from paceline.machine.software import Software

TWO = (Gpu(0, uuid="GPU-a"), Gpu(1, uuid="GPU-b"))
BUSY = (TWO[0], Gpu(1, uuid="GPU-b", processes=(GpuProcess(7),)))


@pytest.fixture
def machine(monkeypatch):
    """Make this machine one with these GPUs; return what was tried."""
    asked = []

    def make(found, *, cuda="12.8", result=None):
        told = gpus.NvmlData(
            Driver("570.133.20", "12.8"), found, (GpuPair(0, 1, "SYS"),) if len(found) > 1 else ()
        )
        monkeypatch.setattr(gpus, "gather_gpus", lambda: told)
        monkeypatch.setattr(
            software, "installed", lambda: Software(torch="2.13.0", torch_cuda=cuda)
        )
        monkeypatch.setattr(peers, "try_pairs", lambda uuids: asked.append(uuids) or (result or {}))
        return asked

    return make


def test_what_a_copy_showed_stands_with_the_pair(machine):
    asked = machine(TWO, result={(0, 1): peers.PeerTrial("ok", 18.2)})
    facts = room.gather()
    assert asked == [["GPU-a", "GPU-b"]]
    assert (facts.pairs[0].trial, facts.pairs[0].gigabytes_per_s, facts.pairs[0].level) == (
        "ok",
        18.2,
        "SYS",
    )


@pytest.mark.parametrize(
    ("found", "cuda"), [(TWO, ""), (TWO[:1], "12.8"), ((), "12.8"), (BUSY, "12.8")], ids=str
)
def test_no_copy_is_tried_in_vain_or_beside_a_run(found, cuda, machine):
    asked = machine(found, cuda=cuda)
    facts = room.gather()
    assert asked == []
    assert [pair.trial for pair in facts.pairs] == [""] * len(facts.pairs)
    assert any("in use" in each for each in facts.not_read) == (found is BUSY)


def test_no_copy_is_tried_where_the_driver_offers_none(machine, monkeypatch):
    asked = machine(TWO)
    pair = GpuPair(0, 1, "PHB", p2p="chipset not supported")
    monkeypatch.setattr(gpus, "gather_gpus", lambda: gpus.NvmlData(Driver(), TWO, (pair,)))
    assert (room.gather().pairs, asked) == ((pair,), [])


def test_what_is_for_root_is_told_where_there_are_gpus(machine, monkeypatch):
    monkeypatch.setattr(gpus, "gather_xids", lambda: None)
    monkeypatch.setattr(peers, "gather_bridges", lambda found: None)
    machine(TWO[:1])
    told = [each for each in room.gather().not_read if "may not read" in each]
    assert [each.partition(":")[0] for each in told] == ["PCI bridges", "kernel log"]
    machine(())
    assert not [each for each in room.gather().not_read if "may not read" in each]


def test_a_part_that_fails_is_told_and_hides_nothing(machine, monkeypatch):
    monkeypatch.setattr(host, "gather_limits", lambda: 1 // 0)
    machine(())
    facts = room.gather()
    assert facts.limits.cpus == 0
    assert "limits" in [each.split(":")[0] for each in facts.not_read]
    assert facts.host.name


def test_a_driver_that_hangs_does_not_hang_the_doctor(machine, monkeypatch):
    machine(())
    monkeypatch.setattr(room, "_DRIVER_S", 0.05)
    monkeypatch.setattr(gpus, "gather_gpus", lambda: time.sleep(1))
    facts = room.gather()
    assert "no answer" in facts.driver.problem
    assert facts.gpus == ()
