"""The result ring: where outputs stand for consumers to read. One writer, any number of readers that hold nothing.

A slot is a u64 sequence word, padded to a cache line, and the outputs behind it. The word is odd while the slot is
written and then `Result.slot_sequence`, always even and never the same twice; a reader copies and looks again (a
seqlock). Consumers get a read-only descriptor whose memory cannot be mapped writable (F_SEAL_FUTURE_WRITE).
"""

import os
import threading

from abi.graph import OutputView
from hal.memory import PAGE_BYTES, create_ring

_LINE_BYTES = 64


def _aligned(size: int, align: int) -> int:
    return -(-size // align) * align


def place_views(views: tuple[OutputView, ...]) -> tuple[tuple[OutputView, ...], int]:
    """The views as they stand in a ring slot, each on a cache line, and the slot's size in bytes (whole pages)."""
    placed = []
    offset = _LINE_BYTES
    for view in views:
        placed.append(
            OutputView(view.name, view.dtype, view.shape, view.unit, offset, view.size_bytes, view.nan),
        )
        offset = _aligned(offset + view.size_bytes, _LINE_BYTES)
    return tuple(placed), _aligned(offset, PAGE_BYTES)


class ResultRing:
    """A ring of `slots` slots for the given outputs. `views` has the offsets that consumers use."""

    def __init__(self, name: str, outputs: tuple[OutputView, ...], slots: int) -> None:
        self.outputs = outputs
        self.views, self.slot_bytes = place_views(outputs)
        self.slots = slots
        self._mapping, self.descriptor = create_ring(f"fenced-ring-{name}", self.slot_bytes * slots)
        self._bytes = self._mapping.view
        self._words = self._bytes.cast("Q")
        self._targets = tuple(
            tuple(self._bytes[at + view.offset : at + view.offset + view.size_bytes] for view in self.views)
            for at in range(0, self.slot_bytes * slots, self.slot_bytes)
        )
        self._next = 0
        self._sequence = 0
        self._barrier_lock = threading.Lock()
        self._barrier_lock.acquire()

    def publish(self, outputs: tuple[memoryview, ...]) -> tuple[int, int]:
        """Copies the outputs (in the order of `views`, bytes) into the next slot; returns (slot, slot_sequence)."""
        slot = self._next
        self._next = (slot + 1) % self.slots
        self._sequence += 2
        word = slot * self.slot_bytes // 8
        self._words[word] = self._sequence - 1
        self._barrier()
        for target, output in zip(self._targets[slot], outputs, strict=True):
            target[:] = output
        self._barrier()
        self._words[word] = self._sequence
        return slot, self._sequence

    def close(self) -> None:
        """Closes the descriptor; consumers keep their own."""
        os.close(self.descriptor)

    def _barrier(self) -> None:
        """Orders the stores before it before the stores after it, on weakly ordered machines too.

        Python has no fence. Releasing a lock is a store-release and taking it a load-acquire, which no store passes in
        that order (Arm ARM B2.3: a load-acquire is not observed before an earlier store-release).
        """
        self._barrier_lock.release()
        self._barrier_lock.acquire()
