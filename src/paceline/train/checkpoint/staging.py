"""Copy a state into CPU buffers before it is written, so that training can change it meanwhile.

The copies are as large as the rank's share of the checkpoint. They stay between two saves only
where the next save is near and memory is plentiful; otherwise the memory is returned to the system
after the commit. New buffers cost a save the time in which the system clears their pages, 0.2 to
2 s for each GB; for the first save that happens in the background, after the first steps.
The files are written on a separate thread, one piece of work at a time; its errors are raised in
the caller.
"""

from __future__ import annotations

import mmap
import sys
import threading
import time
from collections.abc import Callable, Mapping

import torch

from paceline.machine import processes

_NAME = "paceline-checkpoint"


def await_all() -> None:
    """Wait for all work of this process; errors are raised in the caller that started the work."""
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join()


class Background:
    """Runs work while its caller continues; ``wait`` raises the work's exception."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether work is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Start work; the previous work must have been waited for."""
        assert self._thread is None
        # Not a daemon thread: a script ends only after its last checkpoint is committed.
        self._thread = threading.Thread(target=self._run, args=(work,), name=_NAME)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the work is done, and raise its exception, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._error = error


_NEAR_S = 60.0  # with saves this far apart, clearing the pages of 1 GB takes 0.3 % of the time
_PLENTY = 4  # buffers stay if this many of their size would still be available
_ALIGNMENT = 64  # bytes; a cache line, and a multiple of the size of every type


class Staging:
    """Copies of tensors on the CPU, in buffers that are reused if the next save is near."""

    def __init__(
        self,
        device: torch.device,  # of this rank's tensors; for a GPU the buffers are pinned
    ) -> None:
        self._device = device
        self._pin = device.type != "cpu"
        self._buffers: dict[str, torch.Tensor] = {}
        self._began_s: float | None = None  # when the last copy began
        self._interval_s: float | None = None  # from the copy before it to the last one
        self._release: threading.Timer | None = None
        self._pages: _ClearedPages | None = None

    def prepare(self, num_bytes: int) -> None:
        """Clear the pages of the first copy in the background, if memory is plentiful.

        They are released if no save comes soon: saves that are rare need none.
        """
        if self._pin or self._buffers or num_bytes < _LEAST_BYTES:
            return
        if processes.available_bytes() < (1 + _PLENTY) * num_bytes:
            return
        try:
            self._pages = _ClearedPages(num_bytes)
            self._release_in(_NEAR_S)
        except (OSError, RuntimeError):  # no map, or no thread: the save makes its own buffers
            self.clear()

    @torch.no_grad()
    def copy(
        self, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], Callable[[], None]]:
        """Copy tensors; return the copies by name, and a function to call before reading them.

        Copies from a GPU are queued on its current stream.
        """
        self._cancel_release()
        self._note_begin()
        if not _fit(self._buffers, tensors):
            self._buffers = {}  # before the new ones, so that there are never two sets of buffers
            self._buffers = self._make_buffers(tensors)
        buffers = self._buffers
        for name, tensor in tensors.items():
            buffers[name].copy_(tensor, non_blocking=self._pin)
        if not self._pin:
            return buffers, _nothing
        event = torch.Event(self._device)
        event.record(torch.accelerator.current_stream(self._device))
        return buffers, event.synchronize

    def settle(self) -> None:
        """Release the buffers after a commit, at once or when the next save is overdue."""
        self._take_pages()  # of a save that needed no copy
        num_bytes = sum(buffer.nbytes for buffer in self._buffers.values())
        if not num_bytes:
            return
        hold_s = choose_hold_s(
            num_bytes=num_bytes,
            interval_s=self._interval_s,
            available_bytes=processes.available_bytes(),
        )
        if not hold_s:
            self.clear()
            return
        try:
            self._release_in(hold_s)
        except RuntimeError:  # Python 3.12 and newer start no thread while the interpreter ends
            self.clear()

    def clear(self) -> None:
        """Release the buffers; their memory is returned when nothing else refers to them."""
        self._cancel_release()
        self._buffers = {}
        self._take_pages()
        # The allocator of pinned memory keeps what is freed. Older torch cannot release it.
        if self._pin and hasattr(torch.accelerator, "empty_host_cache"):
            torch.accelerator.empty_host_cache()

    def _release_in(self, seconds: float) -> None:
        self._release = threading.Timer(seconds, self.clear)
        self._release.name = "paceline-staging"
        self._release.daemon = True
        self._release.start()

    def _cancel_release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release.cancel()

    def _note_begin(self) -> None:
        now_s = time.monotonic()
        if self._began_s is not None:
            self._interval_s = now_s - self._began_s
        self._began_s = now_s

    def _make_buffers(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self._pin:
            return {
                name: torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
                for name, tensor in tensors.items()
            }
        return _mapped_buffers(tensors, self._take_pages())

    def _take_pages(self) -> mmap.mmap | None:
        """Return the memory whose pages are cleared, as far as they are; None without any."""
        pages, self._pages = self._pages, None
        return None if pages is None else pages.stop()


_LEAST_BYTES = 16 << 20  # whose pages are worth a thread
_CHUNK_BYTES = 32 << 20  # between two looks whether a save needs the pages now


class _ClearedPages:
    """Memory whose pages the system clears in the background."""

    def __init__(self, size: int) -> None:
        self._memory = _map(size)
        self._is_needed = threading.Event()
        # Not a daemon thread: the interpreter must not end while it is in torch.
        self._thread = threading.Thread(target=self._touch, name="paceline-staging-pages")
        self._thread.start()

    def stop(self) -> mmap.mmap:
        """Return the memory; pages that are not cleared yet stay as they are."""
        self._is_needed.set()
        self._thread.join()
        return self._memory

    def _touch(self) -> None:
        flat = torch.frombuffer(self._memory, dtype=torch.uint8)
        for begin in range(0, flat.numel(), _CHUNK_BYTES):
            if self._is_needed.is_set():
                return
            # One byte of each page. So few elements stay in this thread, without the lock of the
            # interpreter.
            flat[begin : begin + _CHUNK_BYTES : mmap.PAGESIZE].zero_()


def choose_hold_s(*, num_bytes: int, interval_s: float | None, available_bytes: int) -> float:
    """Return for how many seconds after a commit the buffers stay. Pure.

    That is twice the interval, after which the next save is overdue; 0 if saves are rare, or if
    little memory is left beside the buffers. ``interval_s`` is that of the last two saves, None
    after the first, when the second may be near.
    """
    if available_bytes < _PLENTY * num_bytes:
        return 0.0
    if interval_s is None:
        return _NEAR_S
    return 2 * interval_s if interval_s <= _NEAR_S else 0.0


def _fit(buffers: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether the buffers are those of tensors with these names, shapes and types."""
    return buffers.keys() == tensors.keys() and all(
        buffer.shape == tensors[name].shape and buffer.dtype == tensors[name].dtype
        for name, buffer in buffers.items()
    )


def _mapped_buffers(
    tensors: Mapping[str, torch.Tensor], cleared: mmap.mmap | None
) -> dict[str, torch.Tensor]:
    """Return buffers in one memory map: ``cleared``, made to fit, or a new one.

    The C library keeps freed memory for later allocations, depending on its sizes. A map is
    returned to the system as a whole, when the last of its buffers is freed.
    """
    offsets = {}
    size = 0
    for name, tensor in tensors.items():
        offsets[name] = size
        size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    memory = _map_of(size, cleared) if size else None
    return {
        name: _buffer(memory, offsets[name], tensor)
        if memory is not None and tensor.nbytes
        else torch.empty(tensor.shape, dtype=tensor.dtype)
        for name, tensor in tensors.items()
    }


def _map_of(size: int, memory: mmap.mmap | None) -> mmap.mmap:
    """Return a memory map with its size changed, or a new one if there is none or it cannot be."""
    if memory is None:
        return _map(size)
    try:
        memory.resize(size)
    except (OSError, SystemError, BufferError):
        return _map(size)
    return memory


def _map(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        memory.madvise(mmap.MADV_HUGEPAGE)  # fewer page faults in the first copy
        memory.madvise(mmap.MADV_DONTFORK)  # a loader's worker would hold what is released here
    return memory


def _buffer(memory: mmap.mmap, offset: int, like: torch.Tensor) -> torch.Tensor:
    # Each has its own storage: torch.save would write, or copy, the whole of a shared one.
    flat = torch.frombuffer(memory, dtype=torch.uint8, count=like.nbytes, offset=offset)
    return flat.view(like.dtype).view(like.shape)


def _nothing() -> None:
    """Do nothing: copies on the CPU are complete at once."""
