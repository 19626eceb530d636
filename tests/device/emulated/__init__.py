"""An accelerator without hardware, for tests: the device type ``emulated``.

Two devices with memory of their own, streams, events, generators, autocast and a process group over gloo. The kernels
are the CPU's. ``csrc/runtime.h`` says what is asynchronous. torch loads the device in each process whose
``sys.path`` holds ``tests/device/autoload``, as it loads the devices of other packages (entry points of the group
``torch.backends``).

Modules:
    build: compile the extension once for these sources, this torch and this Python.
    backend: the module ``torch.emulated``, with the functions that torch asks of a device's module.
"""
