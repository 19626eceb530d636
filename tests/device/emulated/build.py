"""Compile the extension once for these sources, this torch and this Python.

As a program, compile it if that is possible here, and say what is missing otherwise.
"""

import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import torch

SOURCES = Path(__file__).parent / "csrc"
CACHE = Path(__file__).parents[3] / ".device"  # the builder of the site empties .cache
_FLAGS = ("-O1", "-std=c++20")


def missing_for_build() -> str:
    """Return what the build needs and this machine lacks; empty if it can build or has built."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if built().exists() or (shutil.which("g++") and header.exists()):
        return ""
    return "a C++ compiler (g++) or Python.h"


def built() -> Path:
    """Return where the compiled extension is, or will be."""
    digest = hashlib.sha256(" ".join((torch.__version__, sys.version, *_FLAGS)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return CACHE / digest.hexdigest()[:16] / "emulated_device.so"


def load() -> ModuleType:
    """Return the extension, compiled first if it is not yet; processes wait for each other."""
    path = built()
    if not path.exists():
        _build(path)
    spec = importlib.util.spec_from_file_location("emulated_device", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(path: Path) -> None:
    from torch.utils import cpp_extension

    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MAX_JOBS", "2")
    os.environ["PATH"] = os.pathsep.join(
        (sysconfig.get_path("scripts"), os.environ["PATH"])
    )  # ninja
    cpp_extension.load(
        name=path.stem,
        sources=[str(source) for source in sorted(SOURCES.glob("*.cpp"))],
        build_directory=str(path.parent),
        extra_cflags=list(_FLAGS),
        is_python_module=False,
    )


def main() -> None:
    """Compile it, or say what is missing."""
    missing = missing_for_build()
    if missing:
        print(f"the tests on an emulated accelerator are skipped: {missing} is missing")
    elif not built().exists():
        print("compiling the emulated accelerator, which takes a minute", flush=True)
        _build(built())


if __name__ == "__main__":
    main()
