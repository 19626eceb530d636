"""Write files for DCP with a size and checksum of each, synced to the disk when they are closed."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystem

from paceline.train.checkpoint.manifest import FileInfo

_WRITEBACK_BYTES = 1 << 24
_LARGE_BYTES = 1 << 20  # from here on, a checksum takes longer than passing it to another thread


class CheckedFiles(FileSystem):
    """The file system, with a record of what was written to it."""

    def __init__(self) -> None:
        self.written: dict[str, FileInfo] = {}  # size and checksum of each written file, by name

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file; a written file is synced to the disk when the context ends."""
        if mode != "wb":
            with Path(path).open(mode) as plain:
                yield cast(io.IOBase, plain)
            return
        with Path(path).open(mode) as file:
            stream = _Checked(cast("IO[bytes]", file))
            try:
                yield stream
            except Exception as error:
                # After an error torch.save still ends its archive, which fails with a meaningless
                # error.
                raise stream.error or error from None
            file.flush()
            os.fsync(file.fileno())
        self.written[Path(path).name] = FileInfo(stream.num_bytes, stream.crc)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file, also in the record."""
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _Checked(io.IOBase):
    """A file that is written sequentially; it cannot seek, which would invalidate the checksum."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._pending = 0  # bytes written since the last writeback was started
        self.num_bytes = 0
        self.crc = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            if len(view) < _LARGE_BYTES:
                self._add(view)
                self._file.write(view)
            else:
                self._write_large(view)
        except OSError as error:
            self.error = self.error or error
            raise
        self.num_bytes += len(view)
        return len(view)

    def _write_large(self, view: memoryview) -> None:
        # Both calls release the GIL, so that the checksum takes CPU time but little wall time. A
        # plain thread, because an executor accepts no work while the interpreter shuts down, and
        # shutdown waits for the last checkpoint of a script.
        beside = threading.Thread(target=self._add, args=(view,), name="paceline-checksum")
        beside.start()
        try:
            self._file.write(view)
        finally:
            beside.join()  # the caller may reuse the memory afterwards
        self._start_writeback(len(view))

    def _add(self, view: memoryview) -> None:
        self.crc = zlib.crc32(view, self.crc)

    def _start_writeback(self, num_bytes: int) -> None:
        # Makes the kernel start writing now rather than at the sync, so that the disk works while
        # the rest is copied and summed. Despite the name DONTNEED, pages not yet on the disk are
        # kept.
        self._pending += num_bytes
        if self._pending >= _WRITEBACK_BYTES and hasattr(os, "posix_fadvise"):
            begin = self.num_bytes + num_bytes - self._pending
            os.posix_fadvise(self._file.fileno(), begin, self._pending, os.POSIX_FADV_DONTNEED)
            self._pending = 0

    def tell(self) -> int:
        return self.num_bytes

    def flush(self) -> None:
        self._file.flush()

    def seekable(self) -> bool:
        return False


@contextlib.contextmanager
def without_inner_checksums() -> Iterator[None]:
    """Make torch.save leave out checksums in its archives: the whole file is summed, once.

    The setting is per thread (a context variable), so the user's torch.save is not affected.
    """
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)
