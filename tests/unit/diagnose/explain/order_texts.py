"""Texts in which the order, the source or what comes after decides."""

TEXTS = {
    "order-caught": (
        "user-exception",
        """
could not read sample 7, skipping
Traceback (most recent call last):
  File "/w/data.py", line 9, in read
    return Image.open(p)
FileNotFoundError: [Errno 2] No such file or directory: '/d/7.png'
step 10 loss 2.4
step 20 loss 2.2
Traceback (most recent call last):
  File "/w/fit.py", line 44, in <module>
    main()
  File "/w/fit.py", line 30, in main
    sched.advance()
AttributeError: 'NoneType' object has no attribute 'advance'
""",
        "/w/fit.py:30",
    ),
    "order-ib-then-cause": (
        "script-error-on-one-rank",
        """
[rank3]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, remote process exited or there was a network error, NCCL version 2.20.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
NET/IB : Got completion from peer 10.0.0.2<333> with status=12 opcode=0 len=0 vendor err 129 (Recv)
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/l.py", line 4, in f
[rank1]:     return t[k]
[rank1]: KeyError: 'k'
""",
        "/w/l.py:4",
    ),
    "order-jsonlog": (
        "user-exception",
        """
{"log":"Traceback (most recent call last):\\n","stream":"stderr"}
{"log":"  File \\"/w/a.py\\", line 3, in \\u003cmodule\\u003e\\n","stream":"stderr"}
{"log":"    f()\\n","stream":"stderr"}
{"log":"TypeError: f() missing 1 required positional argument: 'x'\\n","stream":"stderr"}
""",
        "/w/a.py:3",
    ),
    "order-site-package": (
        "user-exception",
        """
Traceback (most recent call last):
  File "/opt/venv/bin/mytrain", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.11/site-packages/mytrain/loop.py", line 20, in main
    out = model(b)
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1553, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x3 and 4x2)
""",
        "/opt/venv/lib/python3.11/site-packages/mytrain/loop.py:20",
    ),
    "order-hydra": (
        "user-exception",
        """
Error executing job with overrides: ['lr=1']
Traceback (most recent call last):
  File "/w/train.py", line 12, in main
    cfg.model.depth
omegaconf.errors.ConfigAttributeError: Key 'depth' is not in struct
    full_key: model.depth
    object_type=dict

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
""",
        "/w/train.py:12",
    ),
    "order-ray-tune": (
        "user-exception",
        """
ray.exceptions.RayTaskError(ValueError): ray::_Inner.train() (pid=5, ip=10.0.0.1, actor_id=ab, repr=Torch)
  File "/opt/ray/lib/python3.10/site-packages/ray/train/_internal/utils.py", line 118, in discard_return_wrapper
    train_func(*args, **kwargs)
  File "/w/t.py", line 9, in loop
    raise ValueError('no shards')
ValueError: no shards
""",
        "/w/t.py:9",
    ),
    "order-group": (
        "user-exception",
        """
  + Exception Group Traceback (most recent call last):
  |   File "/w/t.py", line 5, in <module>
  |     run()
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/w/t.py", line 2, in f
    |     raise KeyError('a')
    | KeyError: 'a'
    +------------------------------------
""",
        "/w/t.py:2",
    ),
    "order-straggle": (
        "straggler",
        """
STRAGGLER DETECTION WARNING: rank 5 on node n9 is 40% slower
step 30 loss 2.0
""",
        "rank 5",
    ),
}

# By the name of their finding.
ALIKE = {
    "broken-line-continuation": (
        """
slurm_script: line 31: --nnodes=2: command not found
""",
        """
run.sh: 12: --nproc_per_node: not found
""",
    ),
    "unset-variable": (
        """
/var/spool/slurmd/job00912/slurm_script: line 18: HF_HOME: unbound variable
""",
        """
train.sh: line 4: DATA: parameter null or not set
""",
    ),
    "user-exception": (
        """
usage: pre.py [-h] --out OUT
pre.py: error: the following arguments are required: --out
""",
        """
---------------------------------------------------------------------------
ZeroDivisionError                         Traceback (most recent call last)
Cell In[7], line 3
      1 def norm(x):
      2     n = len(x)
----> 3     return sum(x) / n

ZeroDivisionError: division by zero
""",
        """
---------------------------------------------------------------------------
ValueError                                Traceback (most recent call last)
<ipython-input-5-9f1b2a> in <module>
      1 for b in loader:
----> 2     step(b)

~/proj/steps.py in step(b)
     10 def step(b):
---> 11     raise ValueError('empty batch')

ValueError: empty batch
""",
    ),
    "no-error-in-log": (
        """
epoch 0 step 100 loss 2.1
E0105 19:08:44.163000 3377 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 3403) of binary: /opt/venv/bin/python
I0105 19:08:45.163000 3377 torch/distributed/elastic/agent/server/api.py:900] [default] Worker group FAILED. 2/3 attempts left; will restart worker group
resumed from epoch 0
epoch 1 step 100 loss 2.0
epoch 2 step 100 loss 1.9
training finished
""",
        """
step 5 loss 2.4
Traceback (most recent call last):
  File "/w/data.py", line 9, in read
    return Image.open(p)
FileNotFoundError: [Errno 2] No such file or directory: '/d/7.png'
step 10 loss 2.4
step 20 loss 2.2
step 30 loss 2.2
""",
        """
n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC
n1:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/IPC
n1:1:2 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/IPC
n1:1:2 [0] NCCL INFO Channel 03/0 : 0[0] -> 1[1] via P2P/IPC
n1:1:2 [0] NCCL INFO Channel 04/0 : 0[0] -> 1[1] via P2P/IPC
n1:1:2 [0] NCCL INFO Channel 05/0 : 0[0] -> 1[1] via P2P/IPC
n1:1:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC
n1:1:2 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] via P2P/IPC
n1:1:2 [1] NCCL INFO Channel 02/0 : 1[1] -> 0[0] via P2P/IPC
n1:1:2 [1] NCCL INFO Channel 03/0 : 1[1] -> 0[0] via P2P/IPC
n1:1:2 [1] NCCL INFO Channel 04/0 : 1[1] -> 0[0] via P2P/IPC
n1:1:2 [1] NCCL INFO Channel 05/0 : 1[1] -> 0[0] via P2P/IPC
n1:1:2 [0] NCCL INFO comm 0xab rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE
{'loss': 2.4, 'epoch': 0.1}
""",
        """
srun: job 55 queued and waiting for resources
srun: job 55 has been allocated resources
rank 0 of 8 on n1
epoch 1 val_error 0.31 failed=0
done
""",
    ),
    "cuda-oom": (
        """
epoch 0 step 100 loss 2.1
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
[default] Worker group FAILED. 1/3 attempts left; will restart worker group
epoch 0 step 100 loss 2.0
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
""",
    ),
    "checkpoint-damaged": (
        """
RuntimeError: unexpected EOF, expected 3817285 more bytes. The file might be corrupted.
""",
        """
RuntimeError: PytorchStreamReader failed reading file data/12: invalid header or archive is corrupted
""",
        """
  File "/w/resume.py", line 8, in load
    s = torch.load(p)
_pickle.UnpicklingError: pickle data was truncated
""",
    ),
    "gpu-hardware-error": (
        """
[rank2]: RuntimeError: CUDA error: device-side assert triggered
kernel: NVRM: Xid (PCI:0000:41:00): 79, pid=4411, name=python, GPU has fallen off the bus.
""",
    ),
    "duplicate-ranks": (
        """
gpu-07:5:5 [0] bootstrap.cc:141 NCCL WARN Bootstrap Root : rank 0 of 4 ranks has already checked in
""",
    ),
    "clock-skew": (
        """
slurmd: error: Munge decode failed: Rewound credential
slurmd: error: Check for out of sync clocks
""",
    ),
    "port-held-by-other": (
        """
[W1 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.1.1.1:8080 - retrying (try=3, timeout=600000ms, delay=2905ms): Ping failed, invalid value returned from server. Expected: 1, Got: 19
torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.1.1.1, 8080).
""",
    ),
    "infiniband-error": (
        """
node1:1:2 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<333> with status=12 opcode=0 len=0 vendor err 129 (Recv)
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
""",
    ),
    "port-in-use": (
        """
[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:80 (errno: 13 - Permission denied).
""",
    ),
    "checkpoint-unfinished": (
        """
FileNotFoundError: [Errno 2] No such file or directory: '/ck/step-400/.metadata'
""",
    ),
}
