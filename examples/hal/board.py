"""A worked example for docs/hal-porting.md: the driver for a board that does not exist, complete and conforming.

`BoardAccelerator` and `BoardExecutable` are what a port consists of; the board itself is in `hardware.py`. Everything
that is the same on every device (admission, fences, bindings, sealed memory) comes from `hal`.
"""

from __future__ import annotations

import time

from abi.graph import BufferKind
from examples.hal.hardware import Board, Command
from hal.accelerator import DeviceBuffer, Executable, MemoryUse, Module, Properties
from hal.admit import Admission, Target, admit
from hal.bindings import Bindings
from hal.error import HalCode, HalError
from hal.fence import Fence, Timeline
from hal.memory import Mapping
from hal.weights import map_weights

_STOP_LIMIT_S = 5.0


class BoardExecutable:
    """A loaded module: memory for arena, weights and state, and the board that runs it."""

    def __init__(self, module: Module, admission: Admission) -> None:
        self.graph, self.admission = module.graph, admission
        self._weights = map_weights(module)
        self._arena = Mapping.anonymous(max(1, admission.arena_bytes))
        self._states = {
            index: Mapping.anonymous(buffer.size_bytes)
            for index, buffer in enumerate(module.graph.buffers)
            if buffer.kind is BufferKind.STATE
        }
        self.board = Board(module.graph, module.code, self._bases())
        self.timeline = Timeline(self.board.word, self.board.records, self.board.event)
        self.reset_state()
        self.board.start()

    def _bases(self) -> dict[int, int]:
        bases = {index: mapping.address for index, mapping in self._states.items()}
        for index, buffer in enumerate(self.graph.buffers):
            if buffer.kind is BufferKind.ARENA:
                bases[index] = self._arena.address + buffer.offset
            elif buffer.kind is BufferKind.WEIGHTS and self._weights is not None:
                bases[index] = self._weights.address + buffer.offset
        return bases

    def bindings(self, entrypoint: int) -> Bindings:
        return Bindings(self.graph, entrypoint)

    def state(self, name: str) -> memoryview:
        self._refuse_in_flight()
        found = [self._states[state.buffer].view for state in self.graph.states if state.name == name]
        if not found:
            raise HalError(HalCode.BINDING, f"no state {name!r}")
        return found[0]

    def reset_state(self) -> None:
        self._refuse_in_flight()
        for index, mapping in self._states.items():
            buffer = self.graph.buffers[index]
            mapping.array[:] = 0
            if buffer.initial_from_weights and self._weights is not None:
                mapping.array[:] = self._weights.array[buffer.initial_offset :][: buffer.size_bytes]

    def launches_done(self) -> int:
        return self.board.launches

    def cancel(self) -> None:
        self.board.cancel_through = self.timeline.issued

    def _refuse_in_flight(self) -> None:
        if self.timeline.in_flight:
            raise HalError(HalCode.BINDING, "state is out of reach while a run is in flight")


class BoardAccelerator:
    """The port: see `hal.accelerator.Accelerator` for what each call promises."""

    name = "board"

    def __init__(self) -> None:
        self._executables: list[BoardExecutable] = []
        self._latched: HalError | None = None

    def devices(self) -> tuple[str, ...]:
        return ("example board",)

    def properties(self) -> Properties:
        return Properties(self.name, "example board", "board", (), 1, 1, "CLOCK_MONOTONIC")

    def memory(self) -> MemoryUse:
        held = [executable.admission for executable in self._executables]
        return MemoryUse(
            len(held), sum(a.arena_bytes for a in held), sum(a.weights_bytes for a in held),
            sum(a.state_bytes for a in held), sum(a.code_bytes for a in held), 0,
        )  # fmt: skip

    def load(self, module: Module) -> BoardExecutable:
        admission = admit(module.graph, module.code, module.weights.nbytes, Target(self.name, "board"))
        self._executables.append(BoardExecutable(module, admission))
        return self._executables[-1]

    def unload(self, executable: Executable) -> None:
        assert isinstance(executable, BoardExecutable)
        executable.cancel()
        executable.board.commands.put(None)
        executable.board.join(_STOP_LIMIT_S)
        if executable.board.is_alive():
            raise HalError(HalCode.DEVICE_HANG, "the board does not stop; its memory stays mapped")
        executable.timeline.close()
        self._executables.remove(executable)

    def import_frame(self, mapping: Mapping) -> DeviceBuffer:
        return DeviceBuffer(mapping.address, mapping.size_bytes, mapping, 0, writable=False, zero_copy=True)

    def import_output(self, mapping: Mapping) -> DeviceBuffer:
        return DeviceBuffer(mapping.address, mapping.size_bytes, mapping, 0, writable=True, zero_copy=True)

    def allocate(self, name: str, size_bytes: int) -> DeviceBuffer:
        return self.import_output(Mapping.anonymous(size_bytes))

    def submit(self, executable: Executable, bindings: Bindings) -> Fence:
        assert isinstance(executable, BoardExecutable)
        if self._latched is not None:
            raise HalError(HalCode.DEVICE_LATCHED, "the board takes no runs", found=str(self._latched))
        if bindings.missing:
            raise HalError(HalCode.BINDING_MISSING, f"{bindings.missing} buffers are not bound")
        timeline = executable.timeline
        if not timeline.room():
            raise HalError(HalCode.QUEUE_FULL, f"{timeline.in_flight} runs are in flight")
        submitted_ns, value = time.monotonic_ns(), timeline.issued + 1
        fence = timeline.issue(value, submitted_ns, bindings.budget_ns, tuple(bindings.bound))
        executable.board.commands.put(Command(value, bindings.entrypoint, tuple(bindings.addresses)))
        return fence

    def check(self, now_ns: int) -> HalError | None:
        for executable in self._executables:
            late = executable.timeline.overdue(now_ns)
            if late is not None:
                self.latch(HalError(HalCode.DEVICE_HANG, f"run {late.value} does not end"))
        return self._latched

    def due_ns(self) -> int | None:
        due = [at for at in (executable.timeline.due_ns() for executable in self._executables) if at is not None]
        return min(due, default=None)

    def latch(self, cause: HalError) -> None:
        self._latched = self._latched or cause
        for executable in self._executables:
            executable.timeline.latch(self._latched)
            executable.cancel()

    def reset(self, deadline_ns: int) -> None:
        for executable in self._executables:
            executable.cancel()
            while executable.timeline.in_flight:
                if time.monotonic_ns() >= deadline_ns:
                    raise HalError(HalCode.RESET_IMPOSSIBLE, "the board does not stop", todo="exit the process")
                executable.timeline.sleep(1_000_000)
            executable.timeline.unlatch()
            executable.reset_state()
        self._latched = None

    def close(self) -> None:
        while self._executables:
            self.unload(self._executables[-1])
