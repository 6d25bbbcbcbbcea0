"""A stream's memory as it is given to a tap: the same memory, opened again so that it can only be read.

A read-only descriptor of a memfd can be opened anew for writing by whoever its file mode lets write. So memory whose
mode lets others write is given to its owner (and root) alone, and a dma-buf, which has no read-only form, to nobody.
"""

from __future__ import annotations

import os
import stat

from hal.dma_buf import is_dma_buf
from hal.error import HalError
from hal.memory import reopen_read_only

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class TapMemory:
    """The lease page and the buffers of one stream, in this order, read-only; none where they cannot be shared."""

    def __init__(self, lease_page: int, buffers: tuple[int, ...]) -> None:
        """The descriptors given stay the caller's. Nothing that is wrong with them is an error here."""
        self.descriptors: tuple[int, ...] = ()
        self._why_not = ""
        self._writers: set[int] = set()  # owners of memory that others may write
        opened: list[int] = []
        for index, descriptor in enumerate((lease_page, *buffers)):
            what = f"buffer {index - 1}" if index else "the lease page"
            if is_dma_buf(descriptor):
                self._why_not = f"{what} is a dma-buf, which cannot be given read-only"
                break
            status = os.fstat(descriptor)
            if status.st_mode & _OTHERS_WRITE:
                self._writers.add(status.st_uid)
            try:
                opened.append(reopen_read_only(descriptor))
            except HalError as error:
                self._why_not = f"{what} cannot be opened read-only: {error.found}"
                break
        self.descriptors = tuple(opened)
        if self._why_not:
            self.close()

    def withheld_from(self, uid: int) -> str:
        """Why a tap of this user does not get the memory; empty where it does."""
        if self._why_not or uid == 0 or self._writers <= {uid}:
            return self._why_not
        return "the mode of its memory lets others write it; the camera should fchmod it to 0644"

    def close(self) -> None:
        """Closes the descriptors."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()
