"""What a loaded module is on every device: its graph, weights, state and timeline. A driver's executables build on it.

`LoadedModule` is for a device with a queue of its own (the CPU's runtime); `QueuedModule` for one whose runs are handed
over and awaited by a `hal.run_queue.RunQueue`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from abi.graph import Graph
from hal.accelerator import Module
from hal.admit import Admission
from hal.bindings import Bindings
from hal.error import HalCode, HalError
from hal.fence import Fence, Timeline
from hal.memory import Mapping
from hal.run_queue import RunQueue
from hal.state import StateMemory
from hal.weights import map_weights

_SLICE_NS = 1_000_000


class LoadedModule(ABC):
    """See `hal.accelerator.Executable`. `name` is for messages: the first entrypoint's name.

    align_bytes: what bound buffers and state are aligned to, at least. lost: why the device must be latched, where it
    has said so. A subclass sets `timeline` before its first run.
    """

    timeline: Timeline

    def __init__(
        self, module: Module, admission: Admission, align_bytes: int, make: Callable[[int], Mapping] = Mapping.anonymous
    ) -> None:
        self.graph: Graph = module.graph
        self.admission = admission
        self.name = module.graph.entrypoints[0].name
        self._align_bytes = align_bytes
        self._weights = map_weights(module)
        self._state = StateMemory(module.graph, align_bytes, make)
        self._state.fill(self._weights)

    @property
    def lost(self) -> HalError | None:
        return None

    def bindings(self, entrypoint: int) -> Bindings:
        return Bindings(self.graph, entrypoint, self._align_bytes)

    @abstractmethod
    def submit(self, bindings: Bindings) -> Fence:
        """Hand one run over. The driver has checked that the bindings are this module's and complete."""

    @abstractmethod
    def launches_done(self) -> int: ...

    @abstractmethod
    def cancel(self) -> None: ...

    def idle_before(self, deadline_ns: int) -> bool:
        """Wait until nothing is in flight, at most until CLOCK_MONOTONIC `deadline_ns`. Whether it came to rest."""
        while self.timeline.in_flight:
            left_ns = deadline_ns - time.monotonic_ns()
            if left_ns <= 0:
                return False
            self.timeline.sleep(min(left_ns, _SLICE_NS))  # others may drain the descriptor
        return True

    @abstractmethod
    def unload_until(self, deadline_ns: int) -> None:
        """Wait for rest and give everything back. Raises HalError DEVICE_HANG where a kernel does not end."""

    def state(self, name: str) -> memoryview:
        self._refuse_in_flight("state can be read only between runs")
        found = self._state.view(name)
        self._host_state(current=True)
        return found

    def reset_state(self) -> None:
        if self._state.mapping is not None:
            self._refuse_in_flight("state can be reset only between runs")
            self._host_state(current=False)
            self._state.fill(self._weights)

    def _host_state(self, *, current: bool) -> None:  # noqa: B027 (nothing to do where the device works in host memory)
        """Let the host read (where `current`) and write the state; the device gets it back with the next run."""

    def _refuse_in_flight(self, what: str) -> None:
        if self.timeline.in_flight:
            raise HalError(HalCode.BINDING, what, found=f"{self.timeline.in_flight} in flight")

    def _full(self) -> HalError:
        return HalError(HalCode.QUEUE_FULL, f"{self.timeline.in_flight} runs are in flight",
                        expected=f"at most {self.timeline.slots}", todo="wait for a fence first")  # fmt: skip

    def _hang(self) -> HalError:
        return HalError(HalCode.DEVICE_HANG, f"a kernel of {self.name} does not end; its memory stays mapped",
                        todo="exit the process")  # fmt: skip


class QueuedModule(LoadedModule):
    """A subclass makes the queue and calls `_follow`."""

    queue: RunQueue[Any]

    def _follow(self, queue: RunQueue[Any]) -> None:
        self.queue, self.timeline = queue, queue.timeline

    @property
    def lost(self) -> HalError | None:
        return self.queue.lost

    def launches_done(self) -> int:
        return self.queue.launches_done

    def cancel(self) -> None:
        """Runs that have not begun never do; a run that the device has begun goes on to its end, as cancelled."""
        self.queue.cancel()

    def unload_until(self, deadline_ns: int) -> None:
        self.cancel()
        if not self.idle_before(deadline_ns):
            raise self._hang()
        self.queue.close()
        self.release()

    @abstractmethod
    def release(self) -> None:
        """Give back what the device holds beside the queue; only while nothing is in flight."""

    def _refuse_full(self) -> None:
        if not self.timeline.room():
            raise self._full()

    @staticmethod
    def _foreign() -> HalError:
        return HalError(HalCode.BINDING, "a buffer of another device is bound",
                        expected="buffers that this accelerator imported or allocated")  # fmt: skip
