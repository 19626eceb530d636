"""Signatures of CUDA, its driver and the hardware."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause, note
from paceline.signatures.tier import Tier

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "cuda-oom",
        "out of memory|outofmemoryerror|memory_alloc|cublas_status_alloc_failed|alloc_failed",
        r"(?:CUDA|HIP|XPU|GPU)[^.]{0,40}out of memory(?:\. Tried to allocate (?P<size>[\d.]+"
        r" [KMGT]i?B))?"
        r"(?:.{0,3}GPU (?P<gpu>\d+)(?: has a total capaci?ty of (?P<total>[\d.]+ [KMGT]i?B)"
        r"|; (?P<capacity>[\d.]+ [KMGT]i?B) total)?)?"
        r"|(?:torch|cuda)\S*OutOfMemoryError(?!.*out of memory)|Cuda failure (?:\d+ )?'out of"
        r" memory'"
        r"|CUBLAS_STATUS_ALLOC_FAILED"
        r"|cudaErrorMemoryAllocation|CUDNN_STATUS_ALLOC_FAILED",
        what=(
            "GPU {gpu} ({total}) is out of memory: {size} more were asked for",
            "GPU {gpu} ({capacity}) is out of memory: {size} more were asked for",
            "GPU {gpu} is out of memory: {size} more were asked for",
            "a GPU is out of memory: {size} more were asked for",
            "a GPU is out of memory",
        ),
        fix=(
            "a smaller batch for each GPU with gradient accumulation, activation checkpointing or"
            " sharding (FSDP); nvidia-smi tells whether another process holds memory"
        ),
    ),
    cause(
        "invalid-device-ordinal",
        "invalid device ordinal|device < num_gpus|invalid device id|device_count|cuda:|invalid"
        " cuda",
        r"invalid device ordinal|device >= 0 && device < num_gpus|device_index"
        r" (?:>=|<).*device_count"
        r"|AssertionError: Invalid device id"
        r"|Invalid CUDA '?device|CUDA device \d+ (?:does not exist|not (?:found|available))|Invalid"
        r" device argument"
        r"|Attempting to deserialize object on CUDA device (?P<gpu>\d+) but"
        r" torch\.cuda\.device_count\(\) is "
        r"(?P<count>\d+)",
        what=(
            "a checkpoint asks for GPU {gpu} where {count} are visible",
            "a rank selects a GPU number that it does not see",
        ),
        fix=(
            "start no more processes a node than GPUs are visible (nvidia-smi -L); torch.load(...,"
            " map_location='cpu')"
        ),
        why=(
            "the local rank is used as the number of a GPU; fewer GPUs are visible than ranks were"
            " started"
        ),
    ),
    cause(
        "gpus-fewer-than-processes",
        "not compiled with cuda enabled",
        r"Torch not compiled with CUDA enabled",
        what="the program asks for a GPU, and this torch is built for CPUs only",
        fix=(
            "install a torch with CUDA (pytorch.org/get-started), or choose the device:"
            " torch.accelerator.current_accelerator() or 'cpu'"
        ),
        key="cpu-build",
    ),
    cause(
        "gpus-fewer-than-processes",
        "but your machine only has|no cuda gpus are available|found no nvidia driver"
        "|no cuda-capable device|torch.cuda.is_available() is false|available"
        " gpus|no supported gpu",
        r"You requested (?:GPUs?|gpu): *(?P<want>\[[^\]]*\]|\d+)|But your machine only has:"
        r" *(?P<have>\[[^\]]*\])"
        r"|No CUDA GPUs are available|Found no NVIDIA driver"
        r"|no CUDA-capable device is detected|torch\.cuda\.is_available\(\) is False|No supported"
        r" gpu backend found",
        what=(
            "the program asks for the GPUs {want} and fewer are visible",
            "the program asks for more GPUs than the visible ones, {have}",
            "no GPU is visible to the program",
        ),
        fix=(
            "nvidia-smi -L and echo $CUDA_VISIBLE_DEVICES in the job: ask for as many GPUs as"
            " processes (--gres=gpu:N, docker --gpus all)"
        ),
    ),
    cause(
        "gpus-not-visible",
        "gpus|devices|device_count|device count",
        r"(?:local[_ ]rank|nproc[_-]per[_-]node|num[_-]?(?:gpus|processes|workers)\w*|world[_ ]size"
        r"|number of (?:required|requested) GPUs|"
        r"processes per node).{0,60}(?:exceeds?|greater than|larger than|more than|bigger"
        r" than|<=?|>=?).{0,50}?"
        r"(?:available|visible|physical|device[_ ]count|number of) ?(?:GPUs|CUDA devices|devices)?",
        what="more ranks a node were asked for than GPUs are visible there",
        fix=(
            "nvidia-smi -L and echo $CUDA_VISIBLE_DEVICES in the job: start as many processes as it"
            " lists"
        ),
        unless=r"UserWarning|has been deprecated",
    ),
    cause(
        "cuda-in-parent",
        "re-initialize cuda in forked|only be initialized inside your training function",
        r"Cannot re-initialize CUDA in forked subprocess|should only be initialized inside your"
        r" training function",
        what="CUDA is used in a forked process whose parent has used it already",
        fix=(
            "keep CUDA out of the data set: move batches to the GPU in the training loop; or mp"
            " start method 'spawn'"
        ),
    ),
    cause(
        "cause-unknown",
        "cuda error: unknown error|cuda unknown error|cuda error: initialization error|hip error:"
        " unknown",
        r"(?:CUDA|HIP) (?P<error>(?:error: )?(?:unknown|initialization) error)",
        what="the GPU's driver reports an error without a cause: {error}",
        fix=(
            "nvidia-smi and dmesg -T | grep -i -E 'xid|nvrm' on that node; the same program on"
            " another node"
        ),
        why="it comes from the driver or the GPU, not from the line of the program that is shown",
        tier=Tier.HINTED,
    ),
    cause(
        "fabric-manager-down",
        "system not yet initialized|system_not_ready",
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",
        what=(
            "CUDA is not ready on this node (error 802): the fabric manager of its NVSwitches does"
            " not run (likely)"
        ),
        fix=(
            "systemctl status nvidia-fabricmanager; take the node out of the queue and tell its"
            " operators"
        ),
        why=(
            "on machines with NVSwitch no GPU can be used until the fabric manager has set the"
            " switches up"
        ),
        tier=Tier.ORIGIN,
    ),
    cause(
        "gpus-fewer-than-processes",
        "no devices were found",
        r"^No devices were found",
        what="nvidia-smi finds no GPU",
        fix=(
            "ask for GPUs (sbatch --gres=gpu:N); dmesg | grep -i nvrm on the node shows whether one"
            " was lost"
        ),
        tier=Tier.HINTED,
    ),
    cause(
        "cause-unknown",
        "cuda kernel errors|cuda_launch_blocking",
        r"CUDA kernel errors might be asynchronously reported|consider passing"
        r" CUDA_LAUNCH_BLOCKING=1",
        what="a CUDA error; the line that names it is not in this text",
        fix="look at the line before this one in the full output",
        tier=Tier.VICTIM,
    ),
    cause(
        "gpu-busy",
        "busy or unavailable|exclusive|in use by another",
        r"CUDA-capable device\(s\) is/are busy or unavailable|devices? (?:are|is) busy or"
        r" unavailable"
        r"|exclusive[- _](?:process|thread)",
        what="the GPU is held by another process, or in exclusive mode",
        fix="nvidia-smi shows who holds it; nvidia-smi -c DEFAULT allows several processes",
    ),
    cause(
        "gpu-hardware-error",
        "ecc error|xid|fallen off the bus|unable to determine the device handle|nvlink error|gpu is"
        " lost|hardware stack error|row remap",
        r"(?P<error>uncorrectable (?:ECC|NVLink) error(?: encountered)?|(?:GPU )?(?:has )?fallen"
        r" off the bus"
        r"|GPU is lost"
        r"|Unable to determine the device handle for \S*"
        r"|(?:CUDA error: )?(?:hardware stack error|double bit ECC)|row remapp\w+ fail\w+)"
        r"|NVRM: Xid[^:]*\((?P<pci>[^)]*)\): *(?P<xid>\d+)",
        what=(
            "a GPU reports a hardware fault: {error}",
            "the driver reports Xid {xid} for the GPU at {pci}",
        ),
        fix=(
            "take the node out of the queue and tell its operators: nvidia-smi -q -d ECC; dmesg |"
            " grep -i xid"
        ),
        why="the GPU, not the program, is at fault; on the same node it comes back",
        tier=Tier.ORIGIN,  # it causes failed assertions and illegal accesses
        unless=r"Xid[^:]*\([^)]*\): *(?:13|31|43|45|94)\b",
    ),
    cause(
        "device-side-assert",
        "device-side assert|assertion `",
        r"device-side assert(?!ion)|\[\d+,\d+,\d+\],? thread: \[\d+,\d+,\d+\],? Assertion "
        r"`?(?P<assertion>[^`']*)[`'] failed|"
        r"Assertion"
        r" `(?P<check>[^`']*(?:n_classes|srcIndex|index|num_embeddings|input_val|sizes\[)[^`']*)'"
        r" failed",
        what=(
            "a CUDA kernel's check failed: {assertion}",
            "a CUDA kernel's check failed: {check}",
            "a CUDA kernel's check failed, mostly an index out of range",
        ),
        fix=(
            "CUDA_LAUNCH_BLOCKING=1 shows the line; compare labels and token ids with the number of"
            " classes and embeddings"
        ),
        why="all later CUDA calls of the process fail with the same error",
    ),
    cause(
        "device-mismatch",
        "all tensors to be on the same device|and weight type|must have its parameters and buffers",
        r"Expected all tensors to be on the same device, but"
        r" (?:found at least two devices, (?P<one>[\w:]+) and (?P<other>[\w:]+)"
        r"|got \w+ is on (?P<first>[\w:]+), different from other tensors on (?P<second>[\w:]+))"
        r"|Input type \((?P<input>torch\.(?:cuda\.\w+(?=\) and weight type \(torch\.(?!cuda))"
        r"|\w+(?=\) and weight type \(torch\.cuda)))\) and weight type \((?P<weight>[\w.]+)\)"
        r"|module must have its parameters and buffers on device",
        what=(
            "an operation got tensors on {one} and {other}",
            "an operation got tensors on {first} and {second}",
            "a layer's input is a {input} and its weight a {weight}",
            "a module's parameters are on several devices",
        ),
        fix=(
            "x = x.to(device) for each batch and each tensor that the script makes;"
            " model.to(device) once, before the optimizer is made"
        ),
    ),
    cause(
        "library-version-mismatch",
        "no kernel image|invalid device function|not compatible with the current pytorch|cudnn"
        " version|cudnn",
        r"no kernel image is available|(?:CUDA|HIP) error: invalid device function"
        r"|cuDNN version incompatibility|[Cc]uDNN .*version mismatch",
        what="this build of torch does not fit the GPU or its libraries",
        fix=(
            "python -m torch.utils.collect_env; install the torch build for the driver's CUDA"
            " version and this GPU"
        ),
    ),
    cause(
        "driver-mismatch",
        "driver/library version mismatch|rm_version_mismatch",
        r"Driver/library version mismatch|RM_VERSION_MISMATCH",
        what=(
            "the library of the NVIDIA driver and its module in the kernel have different versions"
        ),
        fix=(
            "reboot the node (the driver was updated), or take another; cat"
            " /proc/driver/nvidia/version"
        ),
        why="no program on this node can use a GPU until the module of the new version is loaded",
        tier=Tier.ORIGIN,  # it is the reason that no GPU is visible
    ),
    cause(
        "driver-mismatch",
        "driver version is insufficient|driver on your system is too old|forward"
        " compatibility|unsupported toolchain|unsupported display driver",
        r"CUDA driver version is insufficient"
        r"|driver on your system is too old(?: \(found version (?P<version>\d+)\))?"
        r"|forward compatibility was attempted on non supported HW|unsupported toolchain"
        r"|unsupported display driver / cuda driver combination",
        what=(
            "the NVIDIA driver serves CUDA {version} at most, and torch is built for a newer one",
            "the NVIDIA driver is too old for the CUDA that torch is built for",
        ),
        fix=(
            "nvidia-smi shows the CUDA that the driver serves: install a torch for it, or update"
            " the driver"
        ),
        tier=Tier.ORIGIN,
        in_warning=True,
    ),
    note("gpu-holder", "memory in use", r"\bProcess \d+ has [\d.]+ [KMGT]?i?B memory in use"),
    cause(
        "illegal-memory-access",
        "illegal memory access|illegal instruction|misaligned address|unspecified launch"
        " failure|memory access fault|illegaladdress|illegal_address",
        r"(?:CUDA|HIP) error: (?P<error>unspecified launch failure|misaligned address|an illegal"
        r" (?:instruction"
        r"|memory access) was encountered)"
        r"|Memory access fault by GPU (?P<gpu>node-\d+)(?:.*Reason: (?P<reason>[^.]+))?"
        r"|Cuda failure.*(?P<failure>illegal memory"
        r" access)|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS",
        what=(
            "a GPU kernel failed: {error}",
            "a kernel on GPU {gpu} used memory that is not its own: {reason}",
            "a kernel on GPU {gpu} used memory that is not its own",
            "a GPU kernel used memory that is not its own",
        ),
        fix=(
            "CUDA_LAUNCH_BLOCKING=1 (ROCm: AMD_SERIALIZE_KERNEL=3) shows the call; then"
            " compute-sanitizer python script.py shows the kernel; if it stays with one GPU, test"
            " that GPU"
        ),
        why=(
            "kernels run behind the program: the line that is shown is often not the one that"
            " started this kernel"
        ),
        tier=Tier.EXCEPTION,
    ),
    cause(
        "cuda-oom",
        "resource_exhausted|resource exhausted|resourceexhausted|oom when allocating",
        r"resource[_ ]exhausted: .*(?:out of memory|failed to allocate|attempting to"
        r" (?:reserve|allocate))"
        r"|ResourceExhaustedError|OOM when allocating tensor",
        what="a GPU is out of memory",
        fix=(
            "a smaller batch for each GPU; JAX: XLA_PYTHON_CLIENT_PREALLOCATE=false, TensorFlow:"
            " set_memory_growth, if another process is on the GPU; nvidia-smi shows it"
        ),
        unless=r"device:CPU|allocator cpu|No space left",
    ),
    note(
        "other-framework",
        "xlaruntimeerror|jaxruntimeerror|/jax/|jaxlib|tensorflow|/keras/",
        r"(?P<jax>XlaRuntimeError|JaxRuntimeError|/jax/_src/|jaxlib)"
        r"|(?P<tensorflow>tensorflow\.python\.framework|/tensorflow/python/|/keras/src/)",
    ),
)
