"""The shell, ssh, schedulers, native libraries, servers outside, and exceptions of C modules."""

TRACE = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 12, in load\n    rows = read(path)\n'

TEXTS = {
    "own-inplace-alone": (
        "user-exception",
        TRACE
        + "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.FloatTensor [512]] is at version 4; expected version 3 instead.",
    ),
}

# By the name of their finding.
ALIKE = {
    "rank-died-signal": (
        "Illegal instruction (core dumped)",
        "job.sh: line 7: 4120 Illegal instruction     python train.py --lr 1e-4",
        'Fatal Python error: Illegal instruction\n\nCurrent thread 0x00007f1c2d9c4740 (most recent call first):\n  File "/home/ada/train.py", line 9 in <module>',
        "Floating point exception (core dumped)",
        "Trace/breakpoint trap (core dumped)",
        "container exited with exit code 132",
        "job.sh: line 3: 4121 Terminated              python train.py",
        "command terminated with exit code 134",
    ),
    "script-syntax-error": (
        "job.sh: line 9: syntax error near unexpected token `done'",
        "job.sh: line 4: unexpected EOF while looking for matching `\"'",
    ),
    "user-exception": (
        "bash: ./start.sh: Permission denied",
        "Could not override 'trainer.gpus'.\nKey 'gpus' is not in struct",
        "Error: Invalid value for '--lr': 'x' is not a valid float.",
        "usage: tune [-h]\ntune: error: the following arguments are required: recipe",
        TRACE
        + """requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/ada/big/resolve/main/config.json

The above exception was the direct cause of the following exception:

"""
        + TRACE
        + "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the requested files in the local cache.",
        TRACE
        + "cv2.error: OpenCV(4.8.0) resize.cpp:4062: error: (-215:Assertion failed) !ssize.empty()",
        "zlib.error: Error -3 while decompressing data: invalid stored block lengths",
        TRACE + "socket.timeout: timed out",
        "torch._C._LinAlgError: linalg.cholesky: the factorization could not be completed",
        "torch._dynamo.exc.Unsupported: call_function BuiltinVariable(print)",
        "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a closing quotation mark. in row 12",
        "Exception: no rows are left after the filter",
        TRACE + "FloatingPointError: Loss became infinite or NaN at iteration=812!",
        "401 Client Error. (Request ID: 7)\nOSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files.",
        "/var/spool/slurmd/job7/slurm_script: line 3: cd: /scratch/ada: No such file or directory",
        "ERROR: No matching distribution found for digits==9.9",
    ),
    "wrong-python-env": (
        "bash: /home/ada/venv/bin/torchrun: /home/eve/venv/bin/python3: bad interpreter: No such file or directory",
        "slurmstepd: error: execve(): /opt/conda/bin/python: Exec format error",
        "/bin/sh: scontrol: command not found",
        "error: Failed to spawn: `torchrun`\n  Caused by: No such file or directory (os error 2)",
    ),
    "module-not-found": ("/usr/bin/python3: No module named digits.train",),
    "node-missing": (
        "worker-b: Host key verification failed.\npdsh@head: worker-b: ssh exited with exit code 255",
        "ada@worker-b: Permission denied (publickey,gssapi-keyex).",
        "ssh: connect to host worker-b port 22: Connection refused",
    ),
    "option-unknown": ("Error: No such option: --epoch (Possible options: --epochs)",),
    "gpus-fewer-than-processes": (
        "ValueError: No slot '4' specified on host 'localhost'",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    ),
    "library-version-mismatch": (
        "Could not load library libcudnn_ops_infer.so.8. Error: libcublas.so.11: cannot open shared object file\nAborted (core dumped)",
        "OMP: Error #15: Initializing libiomp5.so, but found libgomp.so.1 already initialized.\nAborted (core dumped)",
        "Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible with libgomp.so.1 library.",
        "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
        "RuntimeError: The detected CUDA version (11.5) mismatches the version that was used to compile PyTorch (12.1).",
    ),
    "cpu-starved": (
        "OMP: Error #34: System unable to allocate necessary resources for OMP thread:",
    ),
    "driver-mismatch": (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination",
    ),
    "cuda-oom": (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    ),
    "disk-full": (
        "ray.exceptions.OutOfDiskError: Local disk is full",
        "OSError: Not enough disk space. Needed: 12.00 GiB (download: 2.00 GiB)",
        "errors_impl.ResourceExhaustedError: /out/model.ckpt; No space left on device",
        "The node was low on resource: ephemeral-storage. Container main was using 90Gi.",
    ),
    "too-many-open-files": ("OSError: [Errno 28] inotify watch limit reached",),
    "slurm-time-limit": ("=>> PBS: job killed: walltime 3614 exceeded limit 3600",),
    "rank-died-oom-killer": ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",),
    "slurm-request-impossible": (
        "0/7 nodes are available: 7 Insufficient nvidia.com/gpu.",
        "There are not enough slots available in the system to satisfy the 8\nslots that were requested",
    ),
    "container-not-started": ("Error: ImagePullBackOff",),
    "launcher-summary-only": (
        "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD",
        "slurmstepd: error: *** STEP 77.0 ON n7 CANCELLED AT 2026-01-02T03:04:06 ***\nsrun: error: n7: task 3: Exited with exit code 1",
    ),
    "slurm-refused": (
        "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification",
        "salloc: error: Job submit/allocate failed: Invalid qos specification",
        "sbatch: error: Name a project with --comment, see the wiki of this cluster",
    ),
    "slurm-job-ended": (
        "srun: error: Unable to create step for job 7: Job/step already completing or completed",
        """
submitit WARNING (2026-01-02 03:04:05,678) - Caught signal SIGUSR2 on n7: this job is preempted.
slurmstepd: error: *** JOB 77 ON n7 CANCELLED AT 2026-01-02T03:04:06 DUE TO JOB REQUEUE ***
srun: error: n7: tasks 2-3: Exited with exit code 1
""",
        """
slurmstepd: error: *** STEP 77.0 ON n7 CANCELLED AT 2026-01-02T03:04:06 ***
slurmstepd: error: *** JOB 77 ON n7 CANCELLED AT 2026-01-02T03:04:06 ***
torch.distributed.elastic.multiprocessing.api.SignalException: Process 71 got signal: 15
""",
    ),
    "no-internet": (
        TRACE
        + "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the requested files in the local cache.",
        "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError('<pip object>: Failed')': /simple/torch/\nERROR: No matching distribution found for torch",
    ),
    "peer-rank-died": (
        "torch.distributed.DistNetworkError: The client socket has failed to recv: Connection reset by peer",
    ),
    "fp16-nan": (
        "training with --fp16\n"
        + TRACE
        + "FloatingPointError: Loss became infinite or NaN at iteration=812!",
    ),
    "ddp-inplace-buffer": (
        TRACE.replace("load", "run(args.local_rank)")
        + "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: [torch.cuda.FloatTensor [512]] is at version 4; expected version 3 instead.",
    ),
    "slurm-unavailable": (
        "sbatch: error: fetch_config: DNS SRV lookup failed\nsbatch: fatal: Could not establish a configuration source",
        "srun: fatal: No usable configuration here",
    ),
    "collective-timeout": (
        """
[rank0]:[E1121 03:12:44.120 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds
slurmstepd: error: *** JOB 77 ON n7 CANCELLED AT 2026-01-02T03:04:06 ***
""",
    ),
    "folder-not-writable": ("mkdir: cannot create directory '/scratch/runs': Permission denied",),
    "script-missing": ("bash: ./start.sh: No such file or directory",),
}
