"""NCCL, its watchdog and Gloo while they communicate."""

_WATCHDOG = (
    "[rank{rank}]:[E0321 02:07:08.4082 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
    "operation timeout: "
    "WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600060 "
    "milliseconds before "
    "timing out."
)
_LAST = (
    "[rank{rank}]:[E0321 02:07:09.1 ProcessGroupNCCL.cpp:1664] [PG ID 0 PG GUID 0 Rank {rank}] Exception (either "
    "an error or timeout) "
    "detected by watchdog at work: {last}, last enqueued NCCL work: {last}, last completed NCCL work: {done}."
)


def watchdog(rank, seq, op="ALLREDUCE", numel=4096):
    return _WATCHDOG.format(rank=rank, seq=seq, op=op, numel=numel)


def last(rank, enqueued, done):
    return _LAST.format(rank=rank, last=enqueued, done=done)


# By the name of their finding.
ALIKE = {
    "collective-timeout": (
        watchdog(0, 1580),
        (
            "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(OpType=ALLREDUCE, "
            "Timeout(ms)=1800000) ran for 1806986 milliseconds before timing out."
        ),
        "\n".join(
            [
                watchdog(2, 88),
                "[rank2]:[E ProcessGroupNCCL.cpp:621] [Rank 2] Some NCCL operations have failed or timed out. "
                "Due to the asynchronous "
                "nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
                "[rank2]:[E ProcessGroupNCCL.cpp:627] [Rank 2] To avoid data inconsistency, we are taking the "
                "entire process down.",
                "terminate called after throwing an instance of 'c10::DistBackendError'",
                "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 2 (pid: "
                "9) of binary: /usr/bin/python",
            ]
        ),
        "\n".join([last(0, 1582, 1579), last(1, 1579, 1579), last(2, 1582, 1579)])
        + "\n"
        + watchdog(0, 1580),
        "[rank5]:[E1101 10:00:00 ProcessGroupNCCL.cpp:2068] [PG ID 0 PG GUID 0 Rank 5]  failure detected by "
        "watchdog at work sequence "
        "id: 9 PG status: last enqueued work: 9, last completed work: 8\n" + watchdog(5, 9),
        (
            "[rank1]:[F1101 10:00:00 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 Rank 1] ProcessGroupNCCL's "
            "watchdog got stuck for 480 "
            "seconds without making progress in monitoring enqueued collectives."
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms "
            "for recv operation to "
            "complete"
        ),
        "RuntimeError: [Rank 0]: Rank 3 failed to pass monitoredBarrier in 60000 ms",
        (
            "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId "
            "from [0] via c10d key-value "
            "store by key '0', but store->get('0') got error: wait timeout after 600000ms, keys: /default_pg/0//cuda//0"
        ),
    ),
    "collective-mismatch": (
        "\n".join([watchdog(0, 77, "ALLREDUCE", 1), watchdog(1, 77, "BROADCAST", 26)]),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: "
            "CollectiveFingerPrint("
            "SequenceNumber=12, OpType=ALLREDUCE, TensorShape=[4], TensorDtypes=Float, "
            "TensorDeviceTypes=TensorOptions(dtype=float, "
            "device=cpu)), but Rank 1 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=12OpType=BROADCAST).Collectives differ in "
            "the following aspects: \t Op type: ALLREDUCEvs BROADCAST"
        ),
        """
terminate called after throwing an instance of 'gloo::EnforceNotMet'
  what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:459] op.preamble.length <= op.nbytes. 612 vs 4
[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:41014
""",
        "n3:81:99 [2] misc/socket.cc:57 NCCL WARN Message truncated : received 512 bytes instead of 256",
    ),
    "collective-timeout-slow-rank0": (
        "Map (num_proc=8):  45%|####5     | 91000/200000 [29:01<31:22, 57.9 examples/s]\n"
        + watchdog(1, 1, "ALLREDUCE", 1),
        """
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/me/finetune.py", line 90, in main
[rank3]:     with training_args.main_process_first(desc="dataset map pre-processing"):
[rank3]:   File "/opt/venv/lib/python3.10/site-packages/torch/distributed/distributed_c10d.py", line 3696, in barrier
"""
        + watchdog(3, 1, "ALLREDUCE", 1),
    ),
    "script-error-on-one-rank": (
        """
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 77, in validate
[rank0]:     scores = table[split]
[rank0]: KeyError: 'val'
"""
        + watchdog(1, 4012),
    ),
    "peer-rank-died": (
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer "
            "[192.168.1.7]:5233"
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error [10.1.1.4]:40212: "
            "Connection reset by peer"
        ),
        """
torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.21.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgress: Connection closed by remote peer n7<51990>
""",
        (
            "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId "
            "from [0] via c10d key-value "
            "store by key '0', but store->get('0') got error: Connection reset by peer"
        ),
    ),
    "rank-died-oom-killer": (
        """
[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:41014
slurmstepd: error: Detected 1 oom_kill event in StepId=4411.0. Some of the step tasks have been OOM Killed.
""",
    ),
    "duplicate-gpu": (
        "n1:50:71 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 3b000",
        "NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to allow it",
        (
            "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:825, invalid usage, NCCL "
            "version 2.7.8"
        ),
    ),
    "cause-unknown": (
        (
            "RuntimeError: NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:911, unhandled cuda error, NCCL "
            "version 2.7.8\n"
            "ncclUnhandledCudaError: Call to CUDA function failed."
        ),
    ),
    "cuda-oom": (
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    ),
    "no-socket-interface": ("Bootstrap : no socket interface found",),
    "interface-not-routed": (
        (
            "n1:9:77 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<43211> failed : No "
            "route to host"
        ),
    ),
    "nccl-version-mismatch": (
        "NCCL WARN Mismatched NCCL version detected : rank 0 version 22105 rank 8 version 22203",
    ),
    "nccl-shm-too-small": (
        "NCCL WARN Error: failed to extend /dev/shm/nccl-4Fh2 to 9637892 bytes",
        "c1:8:90 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
    ),
    "infiniband-error": (
        (
            "h9:1:2 [6] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, "
            "vendor err 129"
        ),
        "NCCL WARN NET/IB : mlx5_2:1 Got async event : port error",
    ),
    "memlock-too-low": (
        "misc/ibvwrap.cc:194 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    ),
    "variable-contradicted": (
        (
            "NCCL WARN Error : no algorithm/protocol available for function Broadcast with datatype ncclInt8. "
            "NCCL_ALGO was set to Tree."
        ),
    ),
    "nccl-not-built-in": (
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "ValueError: Distributed package doesn't have NCCL built in.",
    ),
    "gpus-fewer-than-processes": (
        "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
    ),
    "no-error-in-log": (
        """
[rank0]:[W1107 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier as devices used by this process are currently unknown. Guessing device ID based on global rank. This can cause a hang if rank to GPU mapping is heterogeneous.
step 1 loss 3.0
""",
    ),
}
