"""Hosts on one machine: network namespaces on a bridge, each with a host name and names of others of its own.

A host can be cut off, slowed down, walled off, or told wrong names. Everything is gone after the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import SkipTest

NETNS = Path("/etc/netns")


class Host:
    """One host."""

    def __init__(self, number: int, tag: str) -> None:
        letter = "abcdefgh"[number]
        self.name = f"host-{letter}"  # host-a, host-b, ...
        self.address = f"10.77.0.{number + 1}"  # on the cable
        self.cable = f"cable-{letter}"  # name of its interface there
        self._space = f"pl-{tag}-{letter}"
        self._bridge_end = f"{tag}{letter}"

    def inside(self, command: Sequence[str], before: str = "") -> list[str]:
        """Return the command that runs ``command`` on this host, after the shell line ``before``.

        The process keeps its pid, so a signal to it arrives, and ``before`` may mount what only it shall see.
        """
        return ["ip", "netns", "exec", self._space, *apart(command, before, name=self.name)]

    def knows(self, names: dict[str, str]) -> None:
        """Write the host's /etc/hosts; for commands that start from now on."""
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
        (NETNS / self._space / "hosts").write_text("\n".join(lines) + "\n")

    def unplug(self) -> None:
        """Take its cable away."""
        self._ip("link", "set", self.cable, "down")

    def drop(self, port: int) -> None:
        """Let packets to a port of this host vanish."""
        self._filter(port, "DROP")

    def reject(self, port: int) -> None:
        """Turn packets to a port of this host away, as a firewall does that says so."""
        self._filter(port, "REJECT")

    def slow(self, rate: str, burst: str = "64kb") -> None:
        """Let no more than ``rate`` leave this host, such as 20mbit.

        A fast link needs a larger ``burst``: tokens for the time in which the timer may be late.
        """
        self._run(
            "tc",
            "qdisc",
            "add",
            "dev",
            self.cable,
            "root",
            "tbf",
            "rate",
            rate,
            "burst",
            burst,
            "latency",
            "1s",
        )

    def plug_in(self, bridge: str) -> None:
        run("ip", "netns", "add", self._space)
        NETNS.joinpath(self._space).mkdir(parents=True, exist_ok=True)
        self._ip("link", "set", "lo", "up")
        run(
            "ip",
            "-n",
            bridge,
            "link",
            "add",
            self._bridge_end,
            "type",
            "veth",
            "peer",
            "name",
            self.cable,
            "netns",
            self._space,
        )
        run("ip", "-n", bridge, "link", "set", self._bridge_end, "master", "bridge", "up")
        self._ip("addr", "add", f"{self.address}/24", "dev", self.cable)
        self._ip("link", "set", self.cable, "up")

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "del", self._space], capture_output=True, check=False)
        shutil.rmtree(NETNS / self._space, ignore_errors=True)

    def _filter(self, port: int, verdict: str) -> None:
        self._run(
            "iptables",
            "-A",
            "INPUT",
            "!",
            "-i",
            "lo",
            "-p",
            "tcp",
            "--dport",
            str(port),
            "-j",
            verdict,
        )

    def _ip(self, *words: str) -> None:
        run("ip", "-n", self._space, *words)

    def _run(self, program: str, *words: str) -> None:
        need(program)
        run("ip", "netns", "exec", self._space, program, *words)


def apart(command: Sequence[str], before: str, *, name: str = "") -> list[str]:
    """Return the command that runs in a mount namespace of its own, after the shell line ``before``."""
    need_root()
    spaces = ["--mount", *(["--uts"] if name else [])]
    lines = "\n".join(
        line for line in ("set -e", f"hostname {name}" if name else "", before, 'exec "$@"') if line
    )
    return ["unshare", *spaces, "sh", "-c", lines, "sh", *command]


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Make ``count`` hosts that can reach each other and know each other's names."""
    need_root()
    need("ip", package="iproute2")
    tag = uuid.uuid4().hex[:6]
    bridge, made = f"pl-{tag}", [Host(number, tag) for number in range(count)]
    try:
        try:
            run("ip", "netns", "add", bridge)
            run("ip", "-n", bridge, "link", "add", "bridge", "type", "bridge")
            run("ip", "-n", bridge, "link", "set", "bridge", "up")
            for host in made:
                host.plug_in(bridge)
        except subprocess.CalledProcessError as error:
            raise SkipTest(
                f"network namespaces cannot be made here: {error.stderr.strip()}"
            ) from None
        for host in made:
            host.knows({each.name: each.address for each in made})
        yield made
    finally:
        for host in made:
            host.remove()
        subprocess.run(["ip", "netns", "del", bridge], capture_output=True, check=False)


def slow_loopback(host: Host, rate: str) -> None:
    """Let ranks of one host send each other no more than ``rate`` together, such as 200mbit."""
    need("tc", package="iproute2")
    shaper = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "1s"]
    run(*host.inside(["tc", "qdisc", "add", "dev", "lo", *shaper]))


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def need(program: str, *, package: str = "") -> None:
    """Skip the test where a program is missing."""
    if shutil.which(program) is None:
        raise SkipTest(f"{package or program} is not installed")


def need_root() -> None:
    """Skip the test for whoever is not root."""
    if os.geteuid() != 0:
        raise SkipTest("needs root")
