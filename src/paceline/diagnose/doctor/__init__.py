"""Describe a machine, and find what is wrong with it for a distributed run.

Collectors gather facts and checks turn them into findings. Recorded facts can therefore be checked
on another machine.

    checks         checks of a machine: each turns the facts about one part into findings
    collectors     collectors: each reads a part of the machine, decides nothing, and omits what it
                   cannot read
    facts          the facts about a machine, as plain data that travels as JSON; None or empty
                   means unknown
    facts_gpu      the facts about GPUs, their driver and the links between them
    facts_network  the facts about RDMA: its ports, and the libraries that NCCL needs to use them
    render         render a machine and its findings as text
    report         the result of ``paceline doctor``: findings and facts, as text and as JSON
"""

from __future__ import annotations

from paceline.diagnose.doctor.report import examine, examine_topology

__all__ = ["examine", "examine_topology"]
