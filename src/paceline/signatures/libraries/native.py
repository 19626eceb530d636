"""Signatures of compiled libraries that fail to load or conflict, and of their threads."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause
from paceline.signatures.tier import Tier

# What to do where a process may start no more threads, and why that happens.
THREAD_LIMIT_FIX = (
    "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1, fewer DataLoader workers; ulimit -u shows the"
    " limit"
)
THREAD_LIMIT_WHY = (
    "each rank starts a thread for each CPU of the node in each numerical library, unless told"
    " otherwise"
)

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "library-version-mismatch",
        "device kernel image is invalid|ptxas fatal|nvcc fatal",
        r"device kernel image is invalid|ptxas fatal *: *(?P<ptxas>Value '\w+' is not"
        r" defined.{0,60})"
        r"|nvcc fatal *: *(?P<nvcc>Unsupported gpu architecture '\w+')",
        what=(
            "the CUDA compiler is too old for this GPU: {ptxas}",
            "the CUDA compiler is too old for this GPU: {nvcc}",
            "a compiled kernel does not fit this GPU or its driver",
        ),
        fix=(
            "install a CUDA toolkit (and triton) that knows this GPU: nvidia-smi"
            " --query-gpu=compute_cap --format=csv"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "library-version-mismatch",
        "could not load library|unable to load any of|dll load failed|[winerror 12|[winerror"
        " 1114]|[winerror 193]|cannot load libmkl|cannot load lib",
        r"Could not load library (?P<library>lib\S+?\.so[\w.]*)\b|Unable to load any of"
        r" \{(?P<any>[^}]+)\}"
        r"|DLL load failed while importing (?P<module>\w+)"
        r"|\[WinError (?:126|127|1114|193)\].*?(?P<dll>[\w-]+\.dll)|FATAL ERROR: Cannot load"
        r" (?P<mkl>lib\S+)",
        what=(
            "the library {library} cannot be loaded",
            "none of the libraries {any} can be loaded",
            (
                "the compiled module {module} cannot be loaded: a library that it needs is missing"
                " or does not fit"
            ),
            "the library {dll} cannot be loaded",
            "the library {mkl} cannot be loaded",
        ),
        fix=(
            "unset LD_LIBRARY_PATH entries that hold another CUDA or cuDNN, and install torch with"
            " its own libraries into a fresh environment (Windows: the Visual C++ runtime)"
        ),
        tier=Tier.COARSE,
        unless=r"\bW tensorflow|dlerror|[Ww]arning|optional|skipp",
    ),
    cause(
        "library-version-mismatch",
        "omp: error #15|is incompatible with libgomp|is incompatible with lib",
        r"OMP: Error #15: Initializing (?P<a>\S+), but found (?P<b>\S+) already initialized"
        r"|MKL_THREADING_LAYER=\w+ is incompatible with (?P<c>lib\S+) library",
        what=(
            "two OpenMP libraries are loaded into one process: {a} and {b}",
            "two OpenMP libraries are loaded into one process: that of MKL and {c}",
        ),
        fix=(
            "install numpy and torch from one source (all pip or all conda); until then import"
            " numpy first, or export MKL_THREADING_LAYER=GNU"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "cpu-starved",
        "omp: error #34|omp: system error #11|libgomp: thread creation failed|unable to create"
        " worker thread",
        r"OMP: Error #34|OMP: System error #11|libgomp: Thread creation failed",
        what="no more threads can be started: the limit of the user or of the job is reached",
        fix=THREAD_LIMIT_FIX,
        why=THREAD_LIMIT_WHY,
        tier=Tier.COARSE,
    ),
    cause(
        "library-version-mismatch",
        "cudamismatchexception|does not match the version torch was compiled with|mismatches the"
        " version that was used",
        r"Installed CUDA version (?P<toolkit>[\d.]+) does not match the version torch was compiled"
        r" with "
        r"(?P<torch>[\d.]+)"
        r"|The detected CUDA version \((?P<nvcc>[\d.]+)\) mismatches the version that was used to"
        r" compile\s*"
        r"PyTorch \((?P<built>[\d.]+)\)|detected CUDA version .* mismatches",
        what=(
            (
                "an extension cannot be built: CUDA {toolkit} is installed, and torch is built with"
                " {torch}"
            ),
            (
                "an extension cannot be built: CUDA {nvcc} is installed, and torch is built with"
                " {built}"
            ),
            (
                "an extension cannot be built: the installed CUDA is not the one that torch is"
                " built with"
            ),
        ),
        fix=(
            "install the CUDA toolkit of torch.version.cuda (conda install cuda-toolkit=VERSION) or"
            " a torch for the installed one; point CUDA_HOME to it"
        ),
        tier=Tier.COARSE,
        unless=r"[Ww]arning|WARN",
    ),
    cause(
        "library-version-mismatch",
        "python.h: no such file",
        r"fatal error: Python\.h: No such file",  # as gcc and clang say
        what="an extension cannot be built: the headers of Python are missing on this node",
        fix="apt-get install python3-dev there, or the Python of conda, which has them",
        tier=Tier.CAUSE,
    ),
    cause(
        "disk-full",
        "outofdiskerror|local disk is full",
        r"OutOfDiskError|local object store is full and the local disk's utilization",
        what="the disk that Ray writes its objects to is full",
        fix="df -h /tmp; ray start --temp-dir on a disk with room, and a smaller object store",
        tier=Tier.COARSE,
    ),
    cause(
        "cuda-oom",
        "no available memory for the cache blocks|less than desired gpu memory utilization"
        "|not enough memory. please try"
        "|insufficient memory. please",
        r"No available memory for the cache blocks"
        r"|Free memory on device.*\((?P<free>[\d.]+)/(?P<total>[\d.]+) ?(?P<unit>\w+)\).*less than"
        r" desired GPU memory"
        r"|Not enough memory\. Please try to increase --mem-fraction-static",
        what=(
            (
                "only {free} of {total} {unit} of the GPU are free, which is less than the server"
                " was told to take"
            ),
            "the GPU has no memory left for the cache after the model is loaded",
        ),
        fix=(
            "nvidia-smi tells whether another process holds memory; a smaller --max-model-len, more"
            " GPUs (--tensor-parallel-size), or another --gpu-memory-utilization"
        ),
        tier=Tier.COARSE,
    ),
    cause(
        "host-oom",
        "defaultcpuallocator|memoryerror|cannot allocate memory|bad_alloc",
        r"DefaultCPUAllocator: (?:can't allocate memory: you tried to allocate (?P<bytes>\d+)"
        r"|not enough memory)|(?:^|[\s.:\])])_?(?:Array)?MemoryError(?::|$)"
        r"|\[Errno 12\] Cannot allocate memory|'?std::bad_alloc\b",
        what=(
            "the host has not the memory for {bytes} bytes on the CPU",
            "the host has not the memory that was asked for on the CPU",
        ),
        fix=(
            "free -h and ulimit -v on the node; a smaller batch, fewer ranks or DataLoader workers,"
            " torch.load(..., mmap=True), or more memory for the job"
        ),
        tier=Tier.COARSE,
        unless=r"nccl|ibv_|InfiniBand|posix_fallocate|/dev/shm|shared memory",
    ),
)
