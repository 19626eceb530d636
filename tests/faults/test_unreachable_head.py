"""One node cannot reach the head: a firewall, a name that means nothing, or the wrong thing."""

from faults.stage import PORT, fault

EXPECTED = {"num_hosts": 2, "limit_s": 11, "options": ("--roll-call-timeout", "8")}
MISSING = ("node 1",)


@fault(
    "head behind a firewall that drops packets",
    finding={0: "node-missing", 1: "port-filtered"},
    names={0: MISSING, 1: ("host-a|10.77.0.1", "29500", "drop")},
    **EXPECTED,
)
def test_packets_are_dropped(stage):
    stage.script()
    stage.hosts[0].drop(PORT)
    stage.launch()


@fault(
    "head behind a firewall that rejects packets",
    finding={0: "node-missing", 1: "port-filtered"},
    names={0: MISSING, 1: ("host-a|10.77.0.1", "29500", "reject")},
    **EXPECTED,
)
def test_packets_are_rejected(stage):
    stage.script()
    stage.hosts[0].reject(PORT)
    stage.launch()


@fault(
    "the head's name does not resolve on one node",
    finding={0: "node-missing", 1: "hostname-unresolvable"},
    names={0: MISSING, 1: ("host-a", "host-b", "resolve|not known")},
    status={0: 1, 1: 2},
    **EXPECTED,
)
def test_its_name_does_not_resolve(stage):
    stage.script()
    stage.hosts[1].knows({})
    stage.launch(head="host-a")


@fault(
    "the head's name means another address on one node",
    finding={0: "node-missing", 1: "address-resolves-differently"},
    names={0: MISSING, 1: ("host-a", "host-b", "10.77.0.2")},
    **EXPECTED,
)
def test_its_name_means_another_address(stage):
    """There it means that node itself, as after a copied /etc/hosts."""
    stage.script()
    stage.hosts[1].knows({"host-a": stage.hosts[1].address})
    stage.launch(head="host-a")


@fault(
    "the head's own name means 127.0.1.1, which is Debian's default and no fault",
    finding="",
    status=0,
    **EXPECTED,
)
def test_its_own_name_means_loopback(stage):
    stage.script(epochs=2)
    stage.hosts[0].knows({"host-a": "127.0.1.1", "host-b": stage.hosts[1].address})
    stage.launch(head="host-a")


@fault(
    "the names of all hosts mean 127.0.1.1 on themselves, which is no fault either",
    finding="",
    status=0,
    **EXPECTED,
)
def test_all_own_names_mean_loopback(stage):
    stage.script(epochs=2)
    first, second = stage.hosts
    first.knows({"host-a": "127.0.1.1", "host-b": second.address})
    second.knows({"host-a": first.address, "host-b": "127.0.1.1"})
    stage.launch(head="host-a")
