"""The consumer's side: subscribe to a model and receive named outputs, each with its receipt.

    with Consumer.subscribe("/run/fenced/consumer.sock", "lane") as consumer:
        delivery = consumer.recv(timeout_s=1.0)
        print(delivery.outputs["lane_offset_m"], delivery.units["lane_offset_m"], delivery.receipt.frames)

Outputs are copied out of a ring that only the daemon can write, and the slot's sequence word is read again after the
copy: a result that was overwritten meanwhile is discarded and counted, never delivered.
"""

from __future__ import annotations

import mmap
import os
import time
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from abi.flat import Result
from abi.graph_values import DType, OutputView
from abi.messages import DeliveryPolicy, Role, Subscribe, Subscribed
from abi.receipt import Receipt
from client.barrier import Barrier
from client.connection import Connection
from client.errors import ConnectionLost

__all__ = ["Consumer", "Delivery"]

WORD_BYTES: Final = 8  # the sequence word at the start of each slot
_DTYPES: Final[dict[DType, np.dtype[np.generic]]] = {
    DType.FLOAT32: np.dtype("<f4"),
    DType.FLOAT16: np.dtype("<f2"),
    DType.INT8: np.dtype("i1"),
    DType.UINT8: np.dtype("u1"),
    DType.INT16: np.dtype("<i2"),
    DType.UINT16: np.dtype("<u2"),
    DType.INT32: np.dtype("<i4"),
    DType.UINT32: np.dtype("<u4"),
    DType.INT64: np.dtype("<i8"),
    DType.UINT64: np.dtype("<u8"),
    DType.BOOL8: np.dtype("?"),
    DType.BFLOAT16: np.dtype("<u2"),  # numpy has no bfloat16: its bits
}


class Delivery(NamedTuple):
    """One result. `outputs` are the caller's own copies, in their declared dtype and shape (bfloat16 as uint16 bits).

    `units`: SI symbol of each output. `result`: the packet itself, for logs.
    """

    outputs: dict[str, NDArray[np.generic]]
    units: dict[str, str]
    receipt: Receipt
    result: Result

    @property
    def missed(self) -> int:
        """Results of this subscription that were not delivered before this one, in total, as the daemon counts."""
        return self.result.missed


class Consumer:
    """A subscription to one model. Not for use from two threads at once."""

    def __init__(self, connection: Connection, subscribed: Subscribed, ring: mmap.mmap, policy: DeliveryPolicy) -> None:
        """Use `subscribe`."""
        self._connection = connection
        self._newest_only = policy is DeliveryPolicy.LATEST
        self._ring = ring
        self._words = memoryview(ring).cast("Q")
        self._slot_words = subscribed.slot_bytes // WORD_BYTES
        self._views = [(output.name, _views(ring, subscribed, output)) for output in subscribed.outputs]
        self._barrier = Barrier()
        self.subscribed = subscribed
        self.torn = 0  # results overwritten while they were copied
        self.skipped = 0  # results passed over for a newer one, under the policy latest
        self._units = {output.name: output.unit for output in subscribed.outputs}

    @classmethod
    def subscribe(
        cls,
        path: str | os.PathLike[str],
        model: str,
        policy: DeliveryPolicy = DeliveryPolicy.LATEST,
        queue: int = 1,
        *,
        name: str = "consumer",
        timeout_s: float = 5.0,
    ) -> Consumer:
        """Connect to the consumer socket and subscribe to a model's results.

        `queue`: results that may wait in the daemon under the policy EVERY (1..64). Raises Refused, ConnectionLost,
        TimeoutError, OSError.
        """
        connection = Connection(os.fspath(path), Role.CONSUMER, name, timeout_s)
        try:
            subscribed = connection.request(Subscribe(model, policy, queue), Subscribed, timeout_s)
            descriptors = connection.take_descriptors()
            try:
                ring = _map_ring(descriptors[0], subscribed)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        except BaseException:
            connection.close()
            raise
        return cls(connection, subscribed, ring, policy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def model_digest(self) -> bytes:
        """SHA-256 of the signed statement of the model that was subscribed to, 32 bytes."""
        return self.subscribed.model_digest

    def fileno(self) -> int:
        """Readable when a result waits."""
        return self._connection.fileno()

    def recv(self, timeout_s: float | None = 0.0) -> Delivery:
        """The next result, under the policy LATEST the newest that waits.

        `timeout_s` None: wait without end. Raises TimeoutError, ConnectionLost, Refused.
        """
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            event = self._next(deadline)
            delivery = self._copy(event)
            if delivery is not None:
                return delivery
            self.torn += 1

    def close(self) -> None:
        """End the subscription. Deliveries stay valid."""
        self._connection.close()
        self._views.clear()
        self._words.release()
        self._ring.close()

    def _next(self, deadline: float) -> Result:
        result = self._result(deadline)
        if result is None:
            raise TimeoutError("no result came in time; is a camera feeding the model?")
        while self._newest_only:
            newer = self._result(None)
            if newer is None:
                break
            self.skipped += 1
            result = newer
        return result

    def _result(self, deadline: float | None) -> Result | None:
        event = self._connection.next_event(deadline)
        while event is not None and not isinstance(event, Result):
            event = self._connection.next_event(deadline)
        return event

    def _copy(self, result: Result) -> Delivery | None:
        """The outputs of a result, or None when its slot was overwritten before or while it was copied."""
        at, words = result.slot * self._slot_words, self._words
        if words[at] != result.slot_sequence:
            return None
        self._barrier()
        outputs = {}
        for name, views in self._views:
            outputs[name] = views[result.slot].copy()
        self._barrier()
        if words[at] != result.slot_sequence:
            return None
        return Delivery(outputs, self._units, Receipt.from_result(result), result)


def _views(ring: mmap.mmap, subscribed: Subscribed, output: OutputView) -> tuple[NDArray[np.generic], ...]:
    """One output where it stands in each slot."""
    slots = np.frombuffer(ring, np.uint8).reshape(subscribed.slots, subscribed.slot_bytes)
    values = slots[:, output.offset : output.offset + output.size_bytes].view(_DTYPES[output.dtype])
    return tuple(one.reshape(output.shape) for one in values)


def _map_ring(descriptor: int, subscribed: Subscribed) -> mmap.mmap:
    """Map the ring read-only, once it is proved that every output of every slot lies in it. Raises ConnectionLost."""
    slot_bytes, size = subscribed.slot_bytes, os.fstat(descriptor).st_size
    if slot_bytes < WORD_BYTES or slot_bytes % WORD_BYTES or subscribed.slots * slot_bytes > size:
        found = f"{subscribed.slots} slots of {slot_bytes} bytes in a ring of {size} bytes"
        raise ConnectionLost(f"the result ring is too small: {found}")
    for output in subscribed.outputs:
        item_bytes = output.dtype.item_bytes
        count = 1
        for length in output.shape:
            count *= length
        if not count * item_bytes == output.size_bytes > 0 or output.offset % item_bytes:
            raise ConnectionLost(f"output {output.name!r} has {output.size_bytes} bytes, not those of {output}")
        if not WORD_BYTES <= output.offset <= slot_bytes - output.size_bytes:
            raise ConnectionLost(f"output {output.name!r} leaves its ring slot of {slot_bytes} bytes: {output}")
    return mmap.mmap(descriptor, subscribed.slots * slot_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
