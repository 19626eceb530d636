"""How processes fail to find each other, as torch, Gloo and launchers print it."""

TEXTS = {
    "elastic-timeout-json": (
        "rendezvous-timeout",
        '{"message": {"message": "RendezvousTimeoutError: ", "extraInfo": {"py_callstack": "Traceback (most recent call '
        'last):\\n  File \\"/opt/lib/python3.10/site-packages/torch/distributed/run.py\\", line 9, in main\\n    run(args)\\n", '
        '"timestamp": "1700000000"}}}',
    ),
    "own-report": (
        "port-held-by-other",
        """
paceline: 2 nodes x 1 rank
error NET002 port-held-by-other: something else answers on port 29500
  where: head-1, port 29500
  it said: SSH-2.0-OpenSSH_9.2
  why: no rank can reach the store
  fix: --master-port 29501
  more: paceline explain NET002
""",
    ),
    "own-warning-then-fine": (
        "straggler",
        """
paceline: warning RUN022 straggler: gpu-b (node 1) holds the others up: 3.0x
  where: gpu-b (node 1)
  fix: look there for other processes (top)
  more: paceline explain RUN022
paceline: done: 2 ranks
""",
    ),
}

# By the name of their finding.
ALIKE = {
    "rank-env-missing": (
        """
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    dist.init_process_group("gloo")
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 258, in _get_env_or_raise
    raise _env_error(env_var)
ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set
""",
        """
  File "main.py", line 31, in setup
    local_rank = int(os.environ["LOCAL_RANK"])
  File "/usr/lib/python3.8/os.py", line 675, in __getitem__
    raise KeyError(key) from None
KeyError: 'LOCAL_RANK'
""",
        "KeyError: 'SLURM_PROCID'",
    ),
    "master-unreachable": (
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 900000ms while trying to connect to "
            "(10.9.0.4, 29501)."
        ),
        "TimeoutError: The client socket has timed out after 1800s while trying to connect to (trainer-0, 23456).",
        """
[W socket.cpp:663] [c10d] The client socket has failed to connect to [::ffff:10.2.0.7]:29400 (errno: 111 - Connection refused).
[W socket.cpp:663] [c10d] The client socket has failed to connect to [::ffff:10.2.0.7]:29400 (errno: 111 - Connection refused).
[E socket.cpp:719] [c10d] The client socket has failed to connect to any network address of (10.2.0.7, 29400).
""",
        """
ValueError: host not found: nothing
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.
""".replace("ValueError: host not found: nothing\n", ""),
        "RuntimeError: No route to host",
    ),
    "rendezvous-timeout": (
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 6/8 clients joined.",
        "seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        (
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: "
            "store_based_barrier_key:1 (world_size=8, worker_count=5, timeout=0:30:00)"
        ),
        (
            "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank "
            "2, for key: "
            "store_based_barrier_key:1 (world_size=16, num_workers_joined=8, timeout=0:10:00 error=wait timeout)"
        ),
        "[rank3]: RuntimeError: Socket Timeout",
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0/store_based_barrier_key",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        """
^CTraceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    dist.init_process_group("nccl")
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 1500, in init_process_group
    store, rank, world_size = next(rendezvous_iterator)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/rendezvous.py", line 189, in _create_c10d_store
    return TCPStore(
KeyboardInterrupt
""",
    ),
    "port-in-use": (
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
            "address. port: 29500, "
            "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        ),
        """
[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:12355 (errno: 98 - Address already in use).
[W socket.cpp:426] [c10d] The server socket has failed to bind to ?UNKNOWN? (errno: 98 - Address already in use).
[E socket.cpp:462] [c10d] The server socket has failed to listen on any local network address.
Traceback (most recent call last):
  File "/home/me/ddp.py", line 7, in main
    dist.init_process_group("nccl", rank=rank, world_size=2)
RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:12355 (errno: 98 - Address already in use).
""",
        """
  File "/opt/conda/lib/python3.8/site-packages/torch/distributed/rendezvous.py", line 179, in _env_rendezvous_handler
    store = TCPStore(master_addr, master_port, world_size, start_daemon, timeout)
RuntimeError: Address already in use
""",
        "OSError: [Errno 98] Address already in use",
    ),
    "no-error-in-log": (
        """
[W socket.cpp:601] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 111 - Connection refused).
epoch 0 step 10 loss 2.31
epoch 0 step 20 loss 2.22
""",
    ),
    "hostname-unresolvable": (
        """
[W socket.cpp:558] [c10d] The IPv4 network addresses of (head-7, 29500) cannot be retrieved (gai error: -3 - Temporary failure in name resolution).
[E socket.cpp:610] [c10d] The client socket has failed to connect to any network address of (head-7, 29500).
""",
        "socket.gaierror: [Errno -2] Name or service not known",
        "worker-3: ssh: Could not resolve hostname worker-3: Name or service not known",
    ),
    "no-internet": (
        """
  File "/home/me/prepare.py", line 40, in fetch
    urllib.request.urlopen("https://data.example.org/a.tar")
urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>
""",
    ),
    "gloo-loopback": (
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:30742: "
            "Connection refused"
        ),
        (
            "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
            "error; SO_ERROR: "
            "Connection refused, remote=[127.0.1.1]:11544"
        ),
    ),
    "interface-missing-on-node": (
        (
            "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
            "Unable to find "
            "address for: ib7"
        ),
    ),
    "c10d-without-rdzv-endpoint": (
        """
+ torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --master_addr=n1 --master_port=29500 train.py
W0301 10:00:00.100000 77 torch/distributed/run.py:792] master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.
""",
    ),
    "local-rank-argument-unknown": (
        "train.py: error: unrecognized arguments: --local_rank=3\nsrun: error: n2: task 3: Exited with exit code 2",
    ),
    "world-size-mismatch": (
        "ValueError: Invalid rank 4, rank should be in the interval [0, 3]",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/context.cc:27] rank < size. 2 vs 2",
    ),
    "option-contradicted": (
        (
            "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without libuv support, "
            "run with "
            "USE_LIBUV=0 to disable it."
        ),
    ),
    "peer-rank-died": (
        (
            "[rank1]:[W1101 10:00:00.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3, addr=[n1]:4242, "
            "remote=[n0]:29500): "
            "Broken pipe"
        ),
        "RuntimeError: Connection reset by peer",
    ),
    "master-addr-wrong": (
        (
            "[E socket.cpp:957] [c10d] The client socket has timed out after 60000ms while trying to connect to "
            "(4419, 29500)."
        ),
    ),
}
