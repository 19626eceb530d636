"""What NCCL's log says it chose, from lines as NCCL 2.27 to 2.29 prints them, and as 2.19 did."""

from __future__ import annotations

import pytest

from paceline.launch.outcome.nccl import summarise

SOCKET = """\
node-a:1234:1234 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
node-a:1234:1234 [0] NCCL INFO Bootstrap: Using eth0:10.0.4.51<0>
node-a:1234:1234 [0] NCCL INFO cudaDriverVersion 12080
node-a:1234:1234 [0] NCCL INFO NCCL version 2.27.5+cuda12.9
node-a:1234:1301 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so.
node-a:1234:1301 [0] NCCL INFO NET/IB : No device found.
node-a:1234:1301 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.4.51<0>
node-a:1234:1301 [0] NCCL INFO Initialized NET plugin Socket
node-a:1234:1301 [0] NCCL INFO Assigned NET plugin Socket to comm
node-a:1234:1301 [0] NCCL INFO Using network Socket
node-a:1234:1301 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 4 cudaDev 0 - Init START
node-a:1234:1301 [0] NCCL INFO Channel 00/02 : 0 1 2 3
node-a:1234:1301 [0] NCCL INFO Channel 01/02 : 0 1 2 3
node-a:1234:1305 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/Socket/0
node-a:1234:1305 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node-a:1234:1305 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node-a:1234:1301 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 0
node-a:1234:1301 [0] NCCL INFO Connected all trees
"""
TUNING = """\
node-a:1234:1234 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
node-a:1234:1234 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}
node-a:1234:1234 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..15}
"""
INFINIBAND = """\
node-b:7:7 [3] NCCL INFO Bootstrap: Using ib0:10.1.0.7<0>
node-b:7:9 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.1.0.7<0>
node-b:7:9 [3] NCCL INFO Using network IB
node-b:7:9 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0/GDRDMA
"""
OLD = """\
gpu7:41820:41820 [0] NCCL INFO Bootstrap : Using bond0:172.36.134.184<0>
gpu7:41826:43110 [6] NCCL INFO Channel 00/0 : 6[a1000] -> 7[a4000] via P2P/IPC/read
gpu7:41827:43073 [7] NCCL INFO Channel 00 : 7[a4000] -> 0[1a000] via SHM/direct/direct
"""


@pytest.mark.parametrize(
    ("texts", "line", "says"),
    [
        ([SOCKET], 0, ["eth0", "network: Socket (1)"]),
        ([SOCKET], 1, ["P2P/CUMEM (2)", "NET/Socket/0 (1)"]),
        ([SOCKET], 2, ["rings (1)", "trees (1)"]),
        ([SOCKET + TUNING], 2, ["RING/LL128 (2)", "TREE/LL (1)"]),
        ([INFINIBAND], 0, ["mlx5_0 (1)", "network: IB (1)"]),
        ([INFINIBAND], 1, ["NET/IB/0/GDRDMA (1)"]),
        ([OLD], 0, ["bond0 (1)", "network: not in the log"]),
        ([OLD], 1, ["P2P/IPC/read (1)", "SHM/direct/direct (1)"]),
        ([OLD], 2, ["not in the log"]),
        ([SOCKET, SOCKET, ""], 1, ["P2P/CUMEM (4)", "NET/Socket/0 (2)"]),
    ],
)
def test_what_was_chosen_is_in_the_line(texts, line, says):
    lines = summarise(texts)
    assert len(lines) == 3
    assert [word for word in says if word not in lines[line]] == []


def test_the_most_frequent_comes_first():
    assert summarise([SOCKET + TUNING])[2] == "NCCL algorithm: RING/LL128 (2), TREE/LL (1)"


def test_a_channels_members_are_no_transport():
    assert "(1)" not in summarise(["a:1:1 [0] NCCL INFO Channel 00/02 : 0 1 2 3\n"])[1]


@pytest.mark.parametrize("texts", [[], [""], ["epoch 1, loss 0.3\n", "via NET/Socket/0\n"]])
def test_silence_is_said(texts):
    assert summarise(texts) == ["NCCL logged nothing: this run did not use it"]
