"""Containers, environment modules, downloads, ROCm, inference servers, JAX and TensorFlow."""

TEXTS = {
    "nvml": ("driver-mismatch", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.127\nRuntimeError: No CUDA GPUs are available"),
    "driver-too-old-warned": (
        "driver-mismatch",
        "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver\nRuntimeError: No CUDA GPUs are available",
    ),
    "rocm-fault": (
        "illegal-memory-access",
        """
Memory access fault by GPU node-1 (Agent handle: 0x55eb9b596570) on address 0x7f66960b2000. Reason: Page not present or supervisor privilege.
Fatal Python error: Aborted

Thread 0x00007ee43dfff640 (most recent call first):
  File "/usr/lib/python3.10/threading.py", line 953 in run
  File "/usr/lib/python3.10/threading.py", line 973 in _bootstrap

Current thread 0x00007f1c2d9c4740 (most recent call first):
  File "/opt/venv/lib/python3.10/site-packages/torch/autograd/graph.py", line 823 in _engine_run_backward
  File "/opt/venv/lib/python3.10/site-packages/torch/_tensor.py", line 581 in backward
  File "/home/ada/train.py", line 61 in step
  File "/home/ada/train.py", line 99 in <module>
Aborted (core dumped)
""",
        "/home/ada/train.py:61",
    ),
    "segfault-with-stack": (
        "rank-segfault",
        """
Fatal Python error: Segmentation fault

Current thread 0x00007f1c2d9c4740 (most recent call first):
  File "/opt/venv/lib/python3.10/site-packages/scipy/sparse/_compressed.py", line 40 in dot
  File "/home/ada/graph.py", line 18 in neighbours
  File "/home/ada/train.py", line 99 in <module>

Extension modules: numpy.core._multiarray_umath, torch._C (total: 21)
Segmentation fault (core dumped)
""",
        "/home/ada/graph.py:18",
    ),
    "illegal-access": ("illegal-memory-access", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    "illegal-access-in-watchdog": (
        "illegal-memory-access",
        "[rank2]:[E1121 10:02:11.1 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    ),
    "aborted-at-its-end": (
        "rank-died-signal",
        "epoch 10: 360 samples, accuracy 96.94 %\n"
        "terminate called without an active exception\n"
        "E1123 11:11:45.820000 31692 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6) local_rank: 1 (pid: 31704) of binary: /env/bin/python",
    ),
    "hip-illegal-access": ("illegal-memory-access", "RuntimeError: HIP error: an illegal memory access was encountered"),
    "apptainer-image": ("container-not-started", "FATAL:   could not open image /scratch/ada/torch.sif: failed to retrieve path for /scratch/ada/torch.sif: lstat /scratch/ada/torch.sif: no such file or directory\nsrun: error: n3: task 0: Exited with exit code 255"),
    "apptainer-program": ("wrong-python-env", 'FATAL:   "torchrun": executable file not found in $PATH'),
    "apptainer-no-gpu": ("gpus-fewer-than-processes", "INFO:    Could not find any nv files on this host!\nRuntimeError: Found no NVIDIA driver on your system."),
    "apptainer-full": ("disk-full", "FATAL:   While making image from oci registry: error fetching image to cache: while building SIF from layers: write /tmp/build/a: no space left on device"),
    "docker-gpu": ("container-not-started", "docker: Error response from daemon: failed to create task for container: nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown."),
    "pyxis": ("container-not-started", "slurmstepd: error: pyxis: couldn't start container\nslurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1"),
    "lmod-before-torch": (
        "environment-module-unknown",
        'Lmod has detected the following error:  The following module(s) are unknown: "pytorch/2.9"\n\nTraceback (most recent call last):\n  File "train.py", line 1, in <module>\n    import torch\nModuleNotFoundError: No module named \'torch\'',
    ),
    "tcl-modules": ("environment-module-unknown", "ERROR: Unable to locate a modulefile for 'cuda/12.9'\n/var/spool/slurmd/job7/slurm_script: line 9: torchrun: command not found"),
    "lmod-needs-others": ("environment-module-unknown", 'Lmod has detected the following error:  These module(s) or extension(s) exist but cannot be loaded as requested: "openmpi/4.1.5"\n   Try: "module spider openmpi/4.1.5" to see how to load the module(s).'),
    "no-module-command": ("environment-module-unknown", "/var/spool/slurmd/job7/slurm_script: line 5: module: command not found\nModuleNotFoundError: No module named 'torch'"),
    "conda-init": (
        "conda-activate-without-hook",
        "CondaError: Run 'conda init' before 'conda activate'\n\nTraceback (most recent call last):\n  File \"train.py\", line 1, in <module>\n    import torch\nModuleNotFoundError: No module named 'torch'",
    ),
    "conda-init-old": ("conda-activate-without-hook", "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\nTo initialize your shell, run\n    $ conda init <SHELL_NAME>\nslurm_script: line 9: torchrun: command not found"),
    "conda-env": ("wrong-python-env", "EnvironmentNameNotFound: Could not find conda environment: torch29\nYou can list all discoverable environments with `conda info --envs`."),
    "hub": ("no-internet", "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files and it looks like bert-base-uncased is not the path to a directory containing a file named config.json."),
    "hub-retries": (
        "no-internet",
        "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /gpt2/resolve/main/config.json (Caused by NameResolutionError(\"<urllib3.connection.HTTPSConnection object at 0x7f>: Failed to resolve 'huggingface.co' ([Errno -3] Temporary failure in name resolution)\"))\"), '(Request ID: 1)')",
    ),
    "hub-cache": ("no-internet", "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the requested files in the local cache. Please check your connection and try again or make sure your Internet connection is on."),
    "torchvision": (
        "no-internet",
        'Traceback (most recent call last):\n  File "/home/ada/train.py", line 12, in main\n    datasets.MNIST(root, download=True)\n  File "/usr/lib/python3.10/socket.py", line 967, in getaddrinfo\n'
        "socket.gaierror: [Errno -3] Temporary failure in name resolution\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File \"/home/ada/train.py\", line 12, in main\n    datasets.MNIST(root, download=True)\nurllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
    ),
    "git": ("no-internet", "fatal: unable to access 'https://github.com/ada/code.git/': Could not resolve host: github.com"),
    "vllm": (
        "cuda-oom",
        """
INFO 05-23 09:31:43 [backends.py:420] Using cache directory: /home/ada/.cache/vllm for vLLM's torch.compile
(EngineCore_0 pid=812) ERROR 05-23 09:31:47 [core.py:396] EngineCore failed to start.
(EngineCore_0 pid=812) ERROR 05-23 09:31:47 [core.py:396] Traceback (most recent call last):
(EngineCore_0 pid=812) ERROR 05-23 09:31:47 [core.py:396]   File "/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 387, in run_engine_core
(EngineCore_0 pid=812) ERROR 05-23 09:31:47 [core.py:396]     engine_core = EngineCoreProc(*args, **kwargs)
(EngineCore_0 pid=812) ERROR 05-23 09:31:47 [core.py:396] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB
(APIServer pid=800)   File "/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/utils.py", line 706, in launch_core_engines
(APIServer pid=800) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
""",
    ),
    "vllm-own-error": (
        "user-exception",
        """
(EngineCore_0 pid=812) ERROR 05-23 09:31:47 [core.py:396] Traceback (most recent call last):
(EngineCore_0 pid=812) ERROR 05-23 09:31:47 [core.py:396]   File "/home/ada/plugin.py", line 38, in load
(EngineCore_0 pid=812) ERROR 05-23 09:31:47 [core.py:396] ValueError: no weights named lm_head
(APIServer pid=800) Traceback (most recent call last):
(APIServer pid=800)   File "/home/ada/serve.py", line 7, in main
(APIServer pid=800) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_0': 1}
""",
        "/home/ada/plugin.py:38",
    ),
    "vllm-nothing-above": ("launcher-summary-only", "(APIServer pid=64866) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"),
    "sglang": (
        "illegal-memory-access",
        """
[2025-02-21 22:59:28 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 1825, in run_scheduler_process
    scheduler.event_loop_overlap()
RuntimeError: CUDA error: an illegal memory access was encountered
[2025-02-21 22:59:28] Received sigquit from a child proces. It usually means the child failed.
""",
    ),
    "jax": (
        "cuda-oom",
        'Traceback (most recent call last):\n  File "/home/ada/train_jax.py", line 12, in <module>\n    y = f(x)\njaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.',
        "/home/ada/train_jax.py:12",
    ),
    "tensorflow": (
        "cuda-oom",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\nOOM when allocating tensor with shape[256,1024,1024] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
    ),
    "jax-processes": ("rendezvous-timeout", "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect"),
    "cgroup": ("rank-died-oom-killer", "slurmstepd: error: Some of your processes may have been killed by the cgroup out-of-memory handler."),
    "timed-out-initialising": ("rendezvous-timeout", "RuntimeError: Timed out initializing process group"),
    "no-backend": ("collective-on-wrong-device", "RuntimeError: No backend type associated with device type cpu"),
    "dense": ("collective-on-wrong-device", "RuntimeError: Tensors must be CUDA and dense"),
    "system-error": ("nccl-system-error", "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8"),
}  # fmt: skip
