"""A worked example for docs/hal-porting.md: the driver for a board that does not exist, complete and conforming.

`BoardAccelerator` and `BoardExecutable` are what a port consists of; the board itself is in `hardware.py`. Everything
that is the same on every device (admission, fences, bindings, sealed memory, latching and reset) comes from `hal`.
"""

from __future__ import annotations

import time

from abi.graph import BufferKind
from examples.hal.hardware import Board, Command
from hal.accelerator import DeviceBuffer, DeviceOptions, Module, Properties
from hal.admit import Admission, Target
from hal.bindings import Bindings
from hal.driver import CPU_OPTIONS, Driver, refuse_options
from hal.fence import Fence, Timeline
from hal.loaded import LoadedModule
from hal.memory import Mapping

_ALIGN_BYTES = 64


class BoardExecutable(LoadedModule):
    """A loaded module: memory for arena, weights and state, and the board that runs it."""

    def __init__(self, module: Module, admission: Admission) -> None:
        super().__init__(module, admission, _ALIGN_BYTES)
        self._arena = Mapping.anonymous(max(1, admission.arena_bytes))
        self.board = Board(module.graph, module.code, self._bases())
        self.timeline = Timeline(self.board.word, self.board.records, self.board.event)
        self.board.start()

    def submit(self, bindings: Bindings) -> Fence:
        timeline = self.timeline
        if not timeline.room():
            raise self._full()
        submitted_ns, value = time.monotonic_ns(), timeline.issued + 1
        fence = timeline.issue(value, submitted_ns, bindings.budget_ns, tuple(bindings.bound))
        self.board.commands.put(Command(value, bindings.entrypoint, tuple(bindings.addresses)))
        return fence

    def launches_done(self) -> int:
        return self.board.launches

    def cancel(self) -> None:
        self.board.cancel_through = self.timeline.issued

    def unload_until(self, deadline_ns: int) -> None:
        self.cancel()
        self.board.commands.put(None)
        self.board.join(max(0, deadline_ns - time.monotonic_ns()) / 1e9)
        if self.board.is_alive():
            raise self._hang()
        self.timeline.close()

    def _bases(self) -> dict[int, int]:
        """Where the board finds each buffer that is not bound anew at each run."""
        bases: dict[int, int] = {}
        for index, buffer in enumerate(self.graph.buffers):
            if buffer.kind is BufferKind.ARENA:
                bases[index] = self._arena.address + buffer.offset
            elif buffer.kind is BufferKind.WEIGHTS and self._weights is not None:
                bases[index] = self._weights.address + buffer.offset
            elif buffer.kind is BufferKind.STATE and self._state.mapping is not None:
                bases[index] = self._state.mapping.address + self._state.at[index]
        return bases


class BoardAccelerator(Driver[BoardExecutable]):
    """The port: see `hal.accelerator.Accelerator` for what each call promises."""

    name = "board"
    kind = BoardExecutable

    def __init__(self, options: DeviceOptions | None = None) -> None:
        super().__init__()
        refuse_options(options or DeviceOptions(), (*CPU_OPTIONS, "device"), "the board")

    def devices(self) -> tuple[str, ...]:
        return ("example board",)

    def properties(self) -> Properties:
        return Properties(self.name, "example board", "board", (), 1, 1, "CLOCK_MONOTONIC")

    def _target(self) -> Target:
        return Target(self.name, "board")

    def _make(self, module: Module, admission: Admission) -> BoardExecutable:
        return BoardExecutable(module, admission)

    def _share(self, mapping: Mapping, *, writable: bool) -> DeviceBuffer:
        return DeviceBuffer(mapping.address, mapping.size_bytes, mapping, 0, writable=writable, zero_copy=True)
