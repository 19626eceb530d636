"""Hosts are not alike: another torch, another script, another clock, a run folder of their own, an interface less."""

from pathlib import Path

from faults.stage import fault

# What differs is known when both hosts are there.
EXPECTED = {"num_hosts": 2, "limit_s": 10, "options": ("--roll-call-timeout", "10")}
# libfaketime would be the more honest liar, but makes time.sleep() fail as soon as it leaves monotonic time alone.
AHEAD = """
import time

time.time = lambda true=time.time: true() + 120
time.time_ns = lambda true=time.time_ns: true() + 120_000_000_000
"""


def other_torch(folder: Path) -> str:
    """Make what looks like another installed torch: links to the true one, but for its version."""
    import torch

    true, other = Path(torch.__file__).parent, folder / "torch"
    other.mkdir(parents=True)
    for path in true.iterdir():
        (other / path.name).symlink_to(path)
    (other / "version.py").unlink()
    (other / "version.py").write_text(
        (true / "version.py").read_text().replace(torch.__version__, "2.12.1+cpu")
    )
    described = folder / "torch-2.12.1+cpu.dist-info" / "METADATA"
    described.parent.mkdir()
    described.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.1+cpu\n")
    return str(folder)


@fault(
    "another torch on one node",
    finding="environment-differs",
    names=("torch", r"2\.12\.1", r"2\.13", "host-a|node 0", "host-b|node 1"),
    **EXPECTED,
)
def test_another_torch(stage):
    stage.script()
    stage.start(0)
    stage.start(1, env={"PYTHONPATH": other_torch(stage.folder / "other")})


@fault(
    "another script on one node",
    finding="code-differs",
    names=(r"train\.py", "host-a|node 0", "host-b|node 1"),
    **EXPECTED,
)
def test_another_script(stage):
    for number, host in enumerate(stage.hosts):
        stage.script(into=f"{host.name}/train.py", settings=f"rate = 0.{number}")
        stage.start(number, cwd=host.name)


@fault(
    "the run folder is not shared",
    finding="run-folder-not-shared",
    names=("host-b|node 1", "paceline-runs"),
    status=0,
    **EXPECTED,
)
def test_each_host_has_its_own_folder(stage):
    for number, host in enumerate(stage.hosts):
        stage.script(epochs=2, into=f"{host.name}/train.py")
        stage.start(number, cwd=host.name)


@fault(
    "the run folder is on a disk of one node",
    finding="run-folder-not-shared",
    names=("host-b|node 1", "paceline-runs"),
    status=0,
    **EXPECTED,
)
def test_one_host_has_mounted_another_disk_there(stage):
    stage.script(epochs=2)
    (stage.folder / "paceline-runs").mkdir()
    stage.start(0)
    stage.start(1, before="mount -t tmpfs tmpfs paceline-runs")


@fault(
    "clocks differ by two minutes",
    finding="clock-skew",
    names=("host-b|node 1", r"1(19|20)\b|2 min|120"),
    status=0,
    **EXPECTED,
)
def test_a_clock_is_ahead(stage):
    stage.script(epochs=2)
    clock = stage.write("clock/sitecustomize.py", AHEAD).parent
    stage.start(0)
    stage.start(1, env={"PYTHONPATH": str(clock)})


@fault(
    "an interface that one node does not have",
    finding="interface-missing-on-node",
    names=("eth7", "host-b", "cable-b"),
    **EXPECTED,
)
def test_an_interface_is_missing_on_one_node(stage):
    stage.script()
    stage.start(0)
    stage.start(1, env={"GLOO_SOCKET_IFNAME": "eth7"})


@fault(
    "slow link",
    finding="slow-link",
    names=("host-a|node 0", "host-b|node 1", "bit/s|B/s"),
    status=0,
    **EXPECTED,
)
def test_a_slow_link(stage):
    stage.script(epochs=2)
    for host in stage.hosts:
        host.slow("20mbit")
    stage.launch()
