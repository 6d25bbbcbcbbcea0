"""The memory of one stream's slots: checked once at registration, mapped, and watched for being overwritten.

Every buffer must hold the format (`abi.format.prove_bounds`), be of a size that nobody can change (a memfd sealed
against shrinking, or a dma-buf), and be a memory of its own.
A broken lease is caught twice: by the slot's control word, which an honest camera raises around every write, and by a
sample of cache lines taken when the frame goes to the device and looked at again after its fence.
"""

import os

import numpy as np

from abi.format import FormatError, StreamFormat, prove_bounds
from abi.messages import Refusal
from abi.packet import Kind, RefusalCode
from hal.accelerator import Accelerator, DeviceBuffer
from hal.dma_buf import DmaBuf, is_dma_buf
from hal.error import HalError
from hal.memory import Mapping, file_bytes, seals

LEASE_BYTES = 64  # of the lease page, for each slot (session.capnp RegisterBuffers)
_LINE_BYTES = 64
_SAMPLED_LINES = 256


class BufferRefused(Exception):
    """A descriptor cannot be registered. `refusal` is the answer for the camera."""

    def __init__(self, what: str, expected: str, found: str, action: str) -> None:
        super().__init__(f"{what}: expected {expected}, found {found}")
        self.refusal = Refusal(RefusalCode.BAD_BUFFER, Kind.REGISTER_BUFFERS, what, expected, found, action)


class FrameSample:
    """Some hundred cache lines spread over one buffer, at places that its producer does not know."""

    def __init__(self, mapping: Mapping) -> None:
        lines = mapping.size_bytes // _LINE_BYTES
        count = min(_SAMPLED_LINES, lines)
        words = mapping.array[: lines * _LINE_BYTES].view(np.uint64)
        self._lines = words.reshape(lines, _LINE_BYTES // 8)
        # one line at a random place in each of `count` equal strata
        random = np.frombuffer(os.urandom(4 * count), np.uint32).astype(np.int64)
        bounds = np.arange(count + 1, dtype=np.int64) * lines // max(1, count)
        self._places = bounds[:-1] + random % np.diff(bounds)
        self._taken, self._now = bytearray(count * _LINE_BYTES), bytearray(count * _LINE_BYTES)
        self._before, self._after = (
            np.frombuffer(kept, np.uint64).reshape(count, _LINE_BYTES // 8) for kept in (self._taken, self._now)
        )

    def take(self) -> None:
        """Remembers the lines as they are."""
        self._lines.take(self._places, 0, self._before, "clip")

    def is_unchanged(self) -> bool:
        """Whether the lines are still what `take` saw."""
        self._lines.take(self._places, 0, self._after, "clip")
        return self._taken == self._now


class Slots:
    """The registered slots of one stream, mapped read-only. The descriptors are no longer needed once it is made.

    `dma_bufs`: for each slot its dma-buf, None where it is a memfd.
    `control_words`: for each slot its control word now, odd while the camera writes.
    """

    def __init__(
        self, format: StreamFormat, lease_page: int, buffers: tuple[int, ...], accelerator: Accelerator
    ) -> None:
        """Checks and maps. Raises BufferRefused; then nothing stays mapped."""
        self._lease = _map_lease(lease_page, len(buffers))
        self.control_words = self._lease.view.cast("Q")[:: LEASE_BYTES // 8]
        _refuse_shared((lease_page, *buffers))
        mapped = [_map_buffer(format, descriptor, index) for index, descriptor in enumerate(buffers)]
        mappings = [mapping for mapping, _ in mapped]
        self.dma_bufs = tuple(dma_buf for _, dma_buf in mapped)
        try:
            self.buffers: tuple[DeviceBuffer, ...] = tuple(accelerator.import_frame(mapping) for mapping in mappings)
        except HalError as error:
            raise BufferRefused("buffers", "memory that the device can read", str(error), error.todo) from error
        self.samples = tuple(FrameSample(mapping) for mapping in mappings)

    @property
    def zero_copy(self) -> bool:
        """Whether the device reads the camera's memory itself."""
        return all(buffer.zero_copy for buffer in self.buffers)


def _map_lease(descriptor: int, slots: int) -> Mapping:
    needed = slots * LEASE_BYTES
    try:
        held = file_bytes(descriptor)
        if held < needed:
            raise BufferRefused("lease page", f"at least {needed} bytes", f"{held} bytes", "size it before sealing it")
        return Mapping.of(descriptor, needed)
    except HalError as error:
        raise _refused("lease page", error) from error


def _map_buffer(format: StreamFormat, descriptor: int, index: int) -> tuple[Mapping, DmaBuf | None]:
    what = f"buffer {index}"
    try:
        if is_dma_buf(descriptor):
            dma_buf = DmaBuf(descriptor)
            prove_bounds(format, dma_buf.size_bytes, None)
            return dma_buf.map(format.buffer_bytes), dma_buf
        prove_bounds(format, file_bytes(descriptor), int(seals(descriptor)))
        return Mapping.of(descriptor, format.buffer_bytes), None
    except FormatError as error:
        raise BufferRefused(f"{what}, {error.field}", error.expected, error.found, error.action) from error
    except HalError as error:
        raise _refused(what, error) from error


def _refused(what: str, error: HalError) -> BufferRefused:
    expected = error.expected or "a sealed memfd or a dma-buf"
    found = error.found or error.what
    return BufferRefused(what, expected, found, error.todo or "pass a memfd sealed with F_SEAL_SHRINK, or a dma-buf")


def _refuse_shared(descriptors: tuple[int, ...]) -> None:
    """Two slots over one memory would be one slot with two leases."""
    seen: dict[tuple[int, int], int] = {}
    for index, descriptor in enumerate(descriptors):
        status = os.fstat(descriptor)
        other = seen.setdefault((status.st_dev, status.st_ino), index)
        if other != index:
            action = "give every slot a memory of its own"
            raise BufferRefused(f"descriptor {index}", "memory of its own", f"the memory of descriptor {other}", action)
