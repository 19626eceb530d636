"""CUDA, DDP, data, checkpoints, Slurm, environments and the program's own errors."""

TEXTS = {
    "in-place": (
        "ddp-inplace-buffer",
        '  File "/opt/lib/python3.9/site-packages/torch/nn/parallel/distributed.py", line 1040, in forward\n'
        "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: "
        "[torch.cuda.FloatTensor [512]] is at version 5; expected version 4 instead. DistributedDataParallel",
    ),
    "worker-error": (
        "user-exception",
        """
Traceback (most recent call last):
  File "/home/me/train.py", line 80, in <module>
    for batch in loader:
  File "/opt/lib/python3.10/site-packages/torch/_utils.py", line 644, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 1.
Original Traceback (most recent call last):
  File "/opt/lib/python3.10/site-packages/torch/utils/data/_utils/worker.py", line 308, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/me/images.py", line 33, in __getitem__
    raise ValueError(f"cannot decode sample {index}")
ValueError: cannot decode sample 190
""",
        "/home/me/images.py:33",
    ),
    "summary": (
        "launcher-summary-only",
        """
WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 312 closing signal SIGTERM
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 311) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 311)
  error_file: <N/A>
""",
    ),
    "user-torchrun": (
        "user-exception",
        """
[default1]:Traceback (most recent call last):
[default1]:  File "/work/exp/train.py", line 201, in main
[default1]:    metrics.update(batch["labls"])
[default1]:KeyError: 'labls'
E0101 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 311) of binary: /usr/bin/python3
""",
        "/work/exp/train.py:201",
    ),
    "user-library-below": (
        "user-exception",
        """
1: Traceback (most recent call last):
1:   File "exp/model.py", line 18, in forward
1:     return self.proj(x)
1:   File "/opt/venv/lib64/python3.12/site-packages/torch/nn/modules/linear.py", line 125, in forward
1:     return F.linear(input, self.weight, self.bias)
1: RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x64 and 32x10)
""",
        "exp/model.py:18",
    ),
    "user-mpirun": (
        "user-exception",
        """
[1,3]<stderr>:Traceback (most recent call last):
[1,3]<stderr>:  File "run.py", line 9, in <module>
[1,3]<stderr>:    main(cfg)
[1,3]<stderr>:ZeroDivisionError: division by zero
""",
        "run.py:9",
    ),
    "user-ray": (
        "user-exception",
        """
(RayTrainWorker pid=812, ip=10.0.0.4) Traceback (most recent call last):
(RayTrainWorker pid=812, ip=10.0.0.4)   File "/home/me/loop.py", line 44, in train_func
(RayTrainWorker pid=812, ip=10.0.0.4)     config["lr"]
(RayTrainWorker pid=812, ip=10.0.0.4) KeyError: 'lr'
""",
        "/home/me/loop.py:44",
    ),
    "user-empty-message": (
        "user-exception",
        'Traceback (most recent call last):\n  File "t.py", line 3, in f\n    assert x.ndim == 3\nAssertionError',
        "t.py:3",
    ),
    "user-chained": (
        "user-exception",
        """
Traceback (most recent call last):
  File "a.py", line 7, in main
    rows = load(path)
  File "a.py", line 3, in load
    open(path)
FileNotFoundError: [Errno 2] No such file or directory: '/data/x.json'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 9, in main
    log.flush()
AttributeError: 'NoneType' object has no attribute 'flush'
""",
        "a.py:3",
    ),
    "user-cut-before-traceback": (
        "user-exception",
        '    y = self.head(x)\n  File "nets.py", line 71, in forward\n    return x @ w\nTypeError: unsupported '
        "operand type(s) for @",
        "nets.py:71",
    ),
}

# By the name of their finding.
ALIKE = {
    "cuda-oom": (
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 3; 39.39 GiB total "
            "capacity; 36.10 GiB already "
            "allocated; 1.21 GiB free; 37.02 GiB reserved in total by PyTorch)"
        ),
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.4 GiB "
            "already allocated)"
        ),
        """
[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:41014
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 50, in step
[rank0]:     loss.backward()
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 23.69 GiB of which 1.2 GiB is free.
""",
    ),
    "invalid-device-ordinal": (
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        (
            "RuntimeError: Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1. "
            "Please use torch.load with "
            "map_location"
        ),
    ),
    "gpus-fewer-than-processes": (
        "RuntimeError: No CUDA GPUs are available",
        (
            "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n"
            " But your machine only has: [0, 1]"
        ),
    ),
    "gpu-busy": ("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",),
    "gpu-hardware-error": (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "[1221.117] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
    ),
    "device-side-assert": (
        (
            "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1290: indexSelectLargeIndex: block: [3,0,0], thread: "
            "[32,0,0] Assertion "
            "`srcIndex < srcSelectDimSize` failed."
        ),
    ),
    "library-version-mismatch": (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        (
            "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, "
            "got 88 from PyObject"
        ),
        "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.29' not found (required by /opt/a.so)",
    ),
    "module-not-found": (
        (
            '[rank0]:   File "/home/me/train.py", line 4, in <module>\n[rank0]:     import wandb\n'
            "[rank0]: ModuleNotFoundError: No module named 'wandb'"
        ),
    ),
    "wrong-python-env": ("bash: line 3: torchrun: command not found",),
    "ddp-model-mismatch": (
        (
            "RuntimeError: DDP expects same model across all ranks, but Rank 0 has 2 params, while rank 1 has "
            "inconsistent 1 params."
        ),
        (
            "RuntimeError: [1]: params[0] in this process with sizes [5, 4] appears not to match sizes of the same "
            "param in process 0."
        ),
    ),
    "unused-parameters": (
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
            "This error indicates that "
            "your module has parameters that were not used in producing loss.\nParameter indices which did not "
            "receive grad for rank 1: 2 3"
        ),
    ),
    "ddp-param-ready-twice": (
        (
            "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following "
            "reasons: 1) Use of a module"
        ),
    ),
    "process-group-not-initialized": (
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
    ),
    "fp16-nan": (
        "\n".join(
            f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {2 * s}, reducing to {s}"
            for s in (65536, 256, 16, 2, 1)
        ),
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
    ),
    "dataloader-shm-too-small": (
        (
            "RuntimeError: DataLoader worker (pid 4021) is killed by signal: Bus error. It is possible that "
            "dataloader's workers are out of "
            "shared memory. Please try to raise your shared memory limit."
        ),
        "RuntimeError: unable to write to file </torch_812_1190344>: No space left on device (28)",
        "  exitcode  : -7 (pid: 311)\n  error_file: <N/A>\n  traceback : Signal 7 (SIGBUS) received by PID 311",
    ),
    "rank-died-oom-killer": (
        "RuntimeError: DataLoader worker (pid 25027) is killed by signal: Killed.",
        "slurmstepd: error: Detected 3 oom_kill events in StepId=9.0. Some of the step tasks have been OOM Killed.",
        (
            "Mar  3 10:11:12 n4 kernel: Out of memory: Killed process 4411 (python) total-vm:91022436kB, "
            "anon-rss:60212344kB"
        ),
    ),
    "rank-died-signal": (
        "RuntimeError: DataLoader worker (pid(s) 4411, 4412) exited unexpectedly",
        """
E0101 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 311) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  exitcode  : -9 (pid: 311)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 311
""",
    ),
    "too-many-open-files": (
        "OSError: [Errno 24] Too many open files: '/data/a.npy'",
        "RuntimeError: received 0 items of ancdata",
    ),
    "disk-full": (
        "OSError: [Errno 28] No space left on device",
        "OSError: [Errno 122] Disk quota exceeded: '/home/me/ckpt/last.pt'",
    ),
    "checkpoint-key-prefix-module": (
        (
            'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a.weight". \n'
            '\tUnexpected key(s) in state_dict: "module.a.weight".'
        ),
    ),
    "checkpoint-other-model": (
        (
            "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for fc.weight: copying a param "
            "with shape "
            "torch.Size([10, 8]) from checkpoint, the shape in current model is torch.Size([12, 8])."
        ),
    ),
    "checkpoint-damaged": (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
    "checkpoint-world-size-mismatch": (
        "ZeRORuntimeException: The checkpoint being loaded used a DP world size of 16 but the current world size is 8.",
    ),
    "slurm-time-limit": (
        """
epoch 3 loss 1.1
slurmstepd-n7: error: *** STEP 77.0 ON n7 CANCELLED AT 2026-01-01T10:00:00 DUE TO TIME LIMIT ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:41014
""",
    ),
    "slurm-ntasks-mismatch": (
        (
            "ValueError: You set `devices=4` in Lightning, but the number of tasks per node configured in SLURM "
            "`--ntasks-per-node=1` does not "
            "match. HINT: Set `devices=1`."
        ),
        "\n".join(
            f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/4"
            for rank in (0, 1)
        ),
    ),
    "sighup-terminal-closed": (
        (
            "W0101 10:00:00 torch/distributed/elastic/agent/server/api.py:704] Received Signals.SIGHUP death signal, "
            "shutting down workers"
        ),
    ),
    "rank-segfault": (
        "  exitcode  : -11 (pid: 311)\n  error_file: <N/A>\n  traceback : Signal 11 (SIGSEGV) received by PID 311",
    ),
    "launcher-summary-only": (
        (
            "[2024-01-01 10:00:00,000] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 4411\n"
            "[2024-01-01 10:00:01,000] [ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python', 'train.py'] exits "
            "with return code = 1"
        ),
        """
Traceback (most recent call last):
  File "/opt/venv/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.10/site-packages/accelerate/commands/launch.py", line 703, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/opt/venv/bin/python', 'train.py']' returned non-zero exit status 1.
""",
    ),
    "peer-rank-died": (
        (
            "[rank: 1] Child process with PID 4411 terminated with code 1. Forcefully terminating all other "
            "processes to avoid zombies"
        ),
    ),
    "no-error-in-log": (
        "epoch 0 loss 2.0\nepoch 1 loss 1.8\nmean absolute error 0.2\ndone",
        "\n\n   \n",
    ),
    "cause-unknown": ("starting\nfatal: plug-in xyz returned state 77",),
    "double-launch": (
        """
+ srun --ntasks=4 --gres=gpu:4 python main.py
  File "/opt/lib/python3.9/site-packages/torch/multiprocessing/spawn.py", line 158, in join
torch.multiprocessing.spawn.ProcessRaisedException:
RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 (world_size=4, worker_count=16, timeout=0:30:00)
""",
    ),
}
