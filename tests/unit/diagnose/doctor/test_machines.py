"""The recorded machines: exactly what a specialist would say of each, and nothing beyond."""

import json
from dataclasses import replace

import pytest

from paceline.diagnose.doctor.checks.judge import judge
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.facts_network import Gid
from paceline.diagnose.doctor.report import DoctorReport
from unit.diagnose.doctor.machines import found, hosted, limited, machine, names, raw, with_pairs

EXPECTED = {
    "efa-p4d-8": [],
    "h100-nvlink-8": [],
    "infiniband-container-8": ["warning infiniband-unused"],
    "mig-1": ["warning mig-slices-of-one-gpu"],
    "no-gpu": [],
    "pcie-acs-4": [
        "warning acs-enabled",
        "hint p2p-across-sockets",
        "hint interface-ambiguous",
        "hint socket-threads-low",
    ],
    "two-sockets-2": ["warning p2p-across-sockets"],
}


def test_every_recorded_machine_is_judged():
    assert names() == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_machine_gets_exactly_its_findings(name):
    assert found(judge(machine(name))) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_machine_has_only_known_facts(name):
    def covers(recorded, known, place):
        for key, value in recorded.items():
            assert key in known, f"{place}.{key} is no fact"
            if isinstance(value, dict) and key not in ("settings", "settings_where", "numa_cpus"):
                covers(value, known[key], f"{place}.{key}")
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                for one, other in zip(value, known[key], strict=True):
                    covers(one, other, f"{place}.{key}")

    recorded = raw(name)
    assert recorded.pop("source")
    covers(recorded, machine(name).to_json(), name)


@pytest.mark.parametrize("name", EXPECTED)
def test_facts_travel_as_json(name):
    facts = machine(name)
    assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


@pytest.mark.parametrize("name", EXPECTED)
def test_every_machine_can_be_printed(name):
    facts = machine(name)
    text = DoctorReport(judge(facts), facts).render()
    assert facts.host.name in text
    assert text.splitlines()[-1].startswith("The doctor changes nothing")
    assert "None" not in text


# Settings on the box with NVLink
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, "warning p2p-disabled-with-nvlink"),
        ({"NCCL_P2P_LEVEL": "LOC"}, "warning p2p-disabled-with-nvlink"),
        ({"NCCL_P2P_LEVEL": "0"}, "warning p2p-disabled-with-nvlink"),
        ({"NCCL_IB_DISABLE": "1"}, "warning infiniband-unused"),
        ({"NCCL_NET": "Socket"}, "warning infiniband-unused"),
        ({"NCCL_NET": "socket"}, "warning infiniband-unused"),
        ({"NCCL_IB_HCA": "mlx4"}, "warning infiniband-unused"),
        ({"NCCL_IB_HCA": "mlx5_0:2"}, "warning infiniband-unused"),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, "error interface-missing-on-node"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, "error interface-missing-on-node"),
    ],
    ids=str,
)
def test_a_setting_that_costs_the_nvlink_box_something_is_found(settings, expected):
    assert found(judge(machine("h100-nvlink-8", settings)))[:1] == [expected]


@pytest.mark.parametrize(
    "settings",
    [
        {"NCCL_P2P_DISABLE": "0"},
        {"NCCL_P2P_LEVEL": "NVL"},
        {"NCCL_P2P_LEVEL": "SYS"},
        {"NCCL_IB_DISABLE": "0"},
        {"NCCL_NET": "IB"},
        {"NCCL_IB_HCA": "mlx5"},
        {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_3:1"},
        {"NCCL_IB_HCA": "^mlx5_2"},
        {"NCCL_SOCKET_IFNAME": "ib"},
        {"NCCL_SOCKET_IFNAME": "^docker,lo"},
        {"NCCL_SOCKET_IFNAME": "=eno3"},
        {"NCCL_SOCKET_IFNAME": "=eno3:1"},
        {"NCCL_DEBUG": "INFO"},
    ],
    ids=str,
)
def test_a_setting_that_costs_nothing_is_not_found(settings):
    names = {finding.name for finding in judge(machine("h100-nvlink-8", settings))}
    assert not names & {
        "p2p-disabled-with-nvlink",
        "infiniband-unused",
        "interface-missing-on-node",
    }


def test_a_misspelt_level_of_peer_to_peer_is_found():
    findings = judge(machine("h100-nvlink-8", {"NCCL_P2P_LEVEL": "NVLINK"}))
    assert any("NCCL_P2P_LEVEL" in finding.what + finding.where for finding in findings), found(
        findings
    )


def test_a_setting_from_a_file_is_found_in_the_file():
    places = {"NCCL_P2P_DISABLE": "/etc/nccl.conf:3"}
    (finding,) = judge(machine("h100-nvlink-8", {"NCCL_P2P_DISABLE": "1"}, settings_where=places))
    assert finding.where == "/etc/nccl.conf:3"


def test_several_settings_are_found_together():
    settings = {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_TIMEOUT": "1800"}
    names = {finding.name for finding in judge(machine("h100-nvlink-8", settings))}
    assert names == {"p2p-disabled-with-nvlink", "infiniband-unused", "variable-unknown"}


# The box with two GPUs on different sockets
def test_the_test_comes_before_the_setting():
    (finding,) = judge(machine("two-sockets-2"))
    assert finding.fix.startswith("test first")
    assert finding.fix.index("all_reduce_perf") < finding.fix.index("export NCCL_P2P_DISABLE=1")


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        ({}, {"NCCL_P2P_DISABLE": "1"}, []),
        ({}, {"NCCL_P2P_LEVEL": "PHB"}, []),
        ({}, {"NCCL_P2P_LEVEL": "SYS"}, ["warning p2p-across-sockets"]),
        ({"trial": "ok", "gigabytes_per_s": 18.2}, {}, ["hint p2p-across-sockets"]),
        ({"trial": "hang"}, {}, ["error p2p-hang"]),
        ({"trial": "wrong-data"}, {}, ["error p2p-hang"]),
        ({"trial": "hang"}, {"NCCL_P2P_DISABLE": "1"}, ["warning p2p-hang"]),
        ({"trial": "not-possible"}, {}, []),
        ({"p2p": "chipset not supported"}, {}, []),
        ({"level": "NODE"}, {}, []),
        ({"nvlinks": 4}, {}, []),
        ({"nvlinks": 4}, {"NCCL_P2P_DISABLE": "1"}, ["warning p2p-disabled-with-nvlink"]),
        ({"nvlinks": 4, "trial": "hang"}, {"NCCL_P2P_DISABLE": "1"}, ["warning p2p-hang"]),
    ],
    ids=str,
)
def test_two_sockets(changes, settings, expected):
    facts = with_pairs(machine("two-sockets-2"), **changes)
    judged = [
        each for each in found(judge(replace(facts, settings=settings))) if "variable" not in each
    ]
    assert judged == expected


def test_a_copy_that_hangs_is_not_answered_with_the_setting_that_is_there():
    facts = with_pairs(machine("two-sockets-2", {"NCCL_P2P_DISABLE": "1"}), trial="hang")
    assert "NCCL_P2P_DISABLE" not in judge(facts)[0].fix


def test_a_misspelt_level_does_not_count_as_a_decision():
    findings = judge(machine("two-sockets-2", {"NCCL_P2P_LEVEL": "sys"}))
    assert found(findings) == ["warning p2p-across-sockets", "warning variable-unknown"]
    assert "NCCL does not know NCCL_P2P_LEVEL=sys, and uses it" in findings[0].evidence


def test_on_other_cpus_nccl_keeps_off_the_sockets_by_itself():
    facts = hosted(machine("two-sockets-2"), cpu_vendor="GenuineIntel")
    (finding,) = judge(facts)
    assert found([finding]) == ["hint p2p-across-sockets"]
    assert finding.fix.startswith("nothing")
    assert found(judge(with_pairs(facts, trial="ok"))) == []


# Access control on the PCI bus
def without(findings, *names):
    return [each for each in found(findings) if each.split()[1] not in names]


AROUND = ("interface-ambiguous", "socket-threads-low", "p2p-across-sockets")


def test_access_control_that_was_tried_is_a_hint():
    facts = with_pairs(machine("pcie-acs-4"), trial="ok", gigabytes_per_s=12.0)
    assert without(judge(facts), *AROUND) == ["hint acs-enabled"]


def test_access_control_between_gpus_that_nccl_does_not_connect_is_a_hint():
    facts = with_pairs(machine("pcie-acs-4"), level="NODE")
    assert without(judge(facts), *AROUND) == ["hint acs-enabled"]
    assert without(judge(replace(facts, settings={"NCCL_P2P_LEVEL": "SYS"})), *AROUND) == [
        "warning acs-enabled"
    ]


def test_access_control_belongs_to_virtual_machines():
    assert without(judge(hosted(machine("pcie-acs-4"), virtual=True)), *AROUND) == []


def test_access_control_that_redirects_nothing_is_fine():
    facts = machine("pcie-acs-4")
    bridges = tuple(replace(bridge, redirects=()) for bridge in facts.bridges)
    assert without(judge(replace(facts, bridges=bridges)), *AROUND) == []


def test_who_may_not_read_the_bridges_is_told_of_the_iommu():
    (finding,) = [
        each for each in judge(machine("pcie-acs-4", bridges=None)) if each.name == "acs-enabled"
    ]
    assert finding.severity == "hint"
    assert "likely" in finding.what
    assert "sudo paceline doctor" in finding.fix


def test_the_iommu_in_passthrough_says_nothing():
    assert without(judge(machine("pcie-acs-4", bridges=None, iommu="passthrough")), *AROUND) == []


def test_access_control_matters_to_network_cards_where_gpus_have_nvlink():
    facts = machine("h100-nvlink-8")
    bridges = tuple(
        replace(bridge, redirects=("request", "completion")) for bridge in facts.bridges
    )
    assert found(judge(replace(facts, bridges=bridges))) == ["hint acs-enabled"]
    assert found(judge(replace(facts, bridges=bridges, rdma=()))) == ["hint socket-threads-low"]


# Whatever stands in the facts
@pytest.mark.parametrize(
    "text",
    ["", "²", "-1", "0x1", "1e9", "=", "^", "^=", ",,", "a" * 5000, "1;2", "\n", "٣"],
    ids=ascii,
)
def test_no_value_of_a_setting_breaks_the_judge(text):
    names = (
        "P2P_DISABLE",
        "P2P_LEVEL",
        "IB_DISABLE",
        "IB_HCA",
        "IB_GID_INDEX",
        "NET",
        "NET_PLUGIN",
        "BUFFSIZE",
        "ALGO",
    )
    settings = {
        **{f"NCCL_{name}": text for name in names},
        "FI_PROVIDER": text,
        "NCCL_SOCKET_IFNAME": text,
    }
    for name in EXPECTED:
        facts = machine(name, settings, visible_devices=text)
        DoctorReport(judge(facts), facts).render()
    judge(replace(roce(settings), visible_devices=None))


# The EFA node
@pytest.mark.parametrize(
    ("changes", "settings", "says"),
    [
        ({"plugins": ()}, {}, "aws-ofi-nccl"),
        ({"plugins": (), "plugins_elsewhere": ("/opt/x/lib/libnccl-net.so",)}, {}, "/opt/x/lib"),
        ({"devices": None}, {}, "/dev/infiniband"),
        ({"devices": ()}, {}, "/dev/infiniband"),
        ({}, {"FI_PROVIDER": "tcp"}, "FI_PROVIDER"),
        ({}, {"FI_PROVIDER": "^efa"}, "FI_PROVIDER"),
        ({}, {"NCCL_NET": "Socket"}, "NCCL_NET"),
        ({}, {"NCCL_NET_PLUGIN": "none"}, "NCCL_NET_PLUGIN"),
    ],
    ids=str,
)
def test_efa_that_is_not_used(changes, settings, says):
    facts = machine("efa-p4d-8", settings)
    facts = replace(facts, rdma_libraries=replace(facts.rdma_libraries, **changes))
    findings = [finding for finding in judge(facts) if finding.name == "infiniband-unused"]
    assert found(findings) == ["warning infiniband-unused"]
    assert says in findings[0].what
    assert "EFA" in findings[0].what


@pytest.mark.parametrize(
    "settings",
    [{"FI_PROVIDER": "efa"}, {"NCCL_IB_DISABLE": "1"}, {"NCCL_NET_PLUGIN": "ofi"}],
    ids=str,
)
def test_efa_that_is_used(settings):
    assert not [
        each for each in found(judge(machine("efa-p4d-8", settings))) if "infiniband" in each
    ]


def test_a_small_limit_of_locked_memory_is_an_error_where_there_is_efa():
    facts = limited(machine("efa-p4d-8"), memlock_bytes=8 << 20)
    assert found(judge(facts)) == ["error memlock-too-low"]
    assert found(judge(limited(facts, lock_any=True))) == []
    assert found(judge(limited(facts, memlock_bytes=1 << 30))) == ["warning memlock-too-low"]


@pytest.mark.parametrize(
    ("container", "says"),
    [
        ("kubernetes", "IPC_LOCK"),
        ("podman", "podman run --ulimit"),
        ("apptainer", "limits.conf"),
        ("", "limits.conf"),
    ],
)
def test_memory_is_locked_where_it_was_limited(container, says):
    facts = hosted(limited(machine("efa-p4d-8"), memlock_bytes=8 << 20), container=container)
    assert says in judge(facts)[0].fix


def test_locked_memory_is_a_hint_where_an_ethernet_card_offers_roce():
    assert found(judge(limited(roce({}), memlock_bytes=8 << 20))) == ["hint memlock-too-low"]


def test_locked_memory_does_not_matter_without_rdma():
    assert found(judge(limited(machine("two-sockets-2"), memlock_bytes=65536))) == [
        "warning p2p-across-sockets"
    ]


# InfiniBand, and a container
def test_the_fix_of_a_container_without_devices_is_its_own():
    facts = machine("infiniband-container-8")
    fixes = {
        kind: judge(hosted(facts, container=kind))[0].fix
        for kind in ("docker", "kubernetes", "apptainer", "")
    }
    assert "docker run --device=/dev/infiniband" in fixes["docker"]
    assert "pod" in fixes["kubernetes"]
    assert fixes["apptainer"].startswith("apptainer")
    assert "modprobe" in fixes[""]


def test_ports_that_are_down_are_not_missed():
    facts = machine("infiniband-container-8")
    facts = replace(facts, rdma=tuple(replace(port, state="DOWN") for port in facts.rdma))
    assert found(judge(facts)) == []
    assert found(judge(replace(facts, settings={"NCCL_IB_DISABLE": "1"}))) == [
        "hint infiniband-disabled"
    ]


def test_roce_that_is_not_used_is_a_hint_only():
    facts = machine("infiniband-container-8")
    facts = replace(facts, rdma=tuple(replace(port, link_layer="Ethernet") for port in facts.rdma))
    assert found(judge(facts)) == ["hint infiniband-unused"]


def roce(settings, *, nccl="2.28.9"):
    facts = machine("h100-nvlink-8", settings)
    gids = (
        Gid(0, "fe80:0000:0000:0000:0a00:27ff:fe01:0203", "IB/RoCE v1"),
        Gid(1, "fe80:0000:0000:0000:0a00:27ff:fe01:0203", "RoCE v2"),
        Gid(2, "0000:0000:0000:0000:0000:ffff:0a1e:000b", "IB/RoCE v1"),
        Gid(3, "0000:0000:0000:0000:0000:ffff:0a1e:000b", "RoCE v2"),
    )
    ports = tuple(replace(port, link_layer="Ethernet", gids=gids) for port in facts.rdma)
    return replace(facts, rdma=ports, software=replace(facts.software, nccl=nccl))


@pytest.mark.parametrize(
    ("settings", "nccl", "expected"),
    [
        ({}, "2.28.9", []),
        ({}, "2.20.5", ["hint gid-index-wrong"]),
        ({}, "", []),
        ({"NCCL_IB_GID_INDEX": "3"}, "2.28.9", []),
        ({"NCCL_IB_GID_INDEX": "2"}, "2.28.9", ["warning gid-index-wrong"]),
        ({"NCCL_IB_GID_INDEX": "7"}, "2.28.9", ["warning gid-index-wrong"]),
    ],
    ids=str,
)
def test_the_address_of_a_roce_port(settings, nccl, expected):
    judged = judge(roce(settings, nccl=nccl))
    assert [each for each in found(judged) if "variable" not in each] == expected
    assert all("3" in finding.fix for finding in judged if finding.name == "gid-index-wrong")


def test_the_address_of_a_card_that_nccl_does_not_use_does_not_matter():
    facts = roce({"NCCL_IB_GID_INDEX": "3", "NCCL_IB_HCA": "^mlx5_0"})
    ports = (replace(facts.rdma[0], gids=facts.rdma[0].gids[:1]), *facts.rdma[1:])
    assert "warning gid-index-wrong" not in found(judge(replace(facts, rdma=ports)))
    settings = {"NCCL_IB_GID_INDEX": "3"}
    assert "warning gid-index-wrong" in found(judge(replace(facts, rdma=ports, settings=settings)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"NCCL_ALGO": "Ring"}, "NVLS"),
        ({"NCCL_PROTO": "Simple"}, "small messages"),
        ({"NCCL_BUFFSIZE": "1048576"}, "smaller buffers"),
        ({"NCCL_BUFFSIZE": "16777216"}, "GPU memory"),
        ({"NCCL_BUFFSIZE": "4194304"}, ""),
    ],
    ids=str,
)
def test_what_limits_nccl_has_its_price(settings, says):
    findings = judge(machine("h100-nvlink-8", settings))
    assert found(findings) == (["hint tuning-forced"] if says else [])
    assert all(says in finding.evidence[0] for finding in findings)


@pytest.mark.parametrize(
    "plugin", [{"NCCL_NET": "GPUDirectTCPX_v7"}, {"NCCL_TUNER_PLUGIN": "libnccl-tuner.so"}], ids=str
)
def test_what_a_plugin_asks_for_is_not_called_forced(plugin):
    findings = judge(
        machine("h100-nvlink-8", {**plugin, "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"})
    )
    assert "hint tuning-forced" not in found(findings)


def test_the_library_of_amd_has_names_of_its_own():
    facts = machine("no-gpu", {"NCCL_NCHANNELS_PER_PEER": "4", "TORCH_NCCL_TIMEOUT": "9"})
    assert found(judge(facts)) == ["warning variable-unknown"] * 2
    assert found(
        judge(replace(facts, software=replace(facts.software, torch="2.9.0+rocm6.4")))
    ) == ["warning variable-unknown"]


def test_a_setting_is_judged_once():
    findings = judge(machine("h100-nvlink-8", {"NCCL_PROTO": "LL128", "NCCL_ALGO": "Tree"}))
    assert [finding.where for finding in findings if finding.name == "tuning-forced"] == []
    assert len(findings) == 2


def test_nothing_limits_nccl_where_nobody_runs_it():
    assert found(judge(machine("no-gpu", {"NCCL_ALGO": "Ring"}))) == []
