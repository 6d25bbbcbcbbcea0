"""One module loaded for one conformance check, with inputs and outputs bound, and ways to look at their memory."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from abi import golden
from abi.graph import Entrypoint, Graph
from hal.accelerator import Accelerator, DeviceBuffer, Module
from hal.error import HalCode, HalError
from hal.fence import Fence, FenceStatus
from hal.memory import PAGE_BYTES, Mapping, create_sealed

_TRIAL_LEAST_NS = 500_000
_TRIAL_MOST_ROUNDS = 1 << 24


class CheckFailed(Exception):
    """The driver broke a promise; the text is the finding."""


class CheckSkipped(Exception):
    """The subject has nothing to run this check with."""


def wait_done(fence: Fence, limit_ns: int) -> None:
    """Wait for SIGNALED. Raises CheckFailed for anything else."""
    status = fence.wait(time.monotonic_ns() + limit_ns)
    if status is FenceStatus.ACTIVE:
        raise CheckFailed(f"run {fence.value} did not signal within {limit_ns // 1_000_000} ms")
    if status is FenceStatus.ERROR:
        raise CheckFailed(f"run {fence.value} ended with {fence.error}")


def expect_refusal(code: HalCode, act: Callable[[], object]) -> None:
    """Raises CheckFailed unless `act` raises a HalError with `code`."""
    try:
        act()
    except HalError as error:
        if error.code is not code:
            raise CheckFailed(f"expected the refusal {code.value}, got {error}") from error
        return
    raise CheckFailed(f"expected the refusal {code.value}, and it was accepted")


class Lane:
    """One set of bindings with memory of its own: frames in sealed memfds as cameras pass them, aux, outputs."""

    def __init__(self, rig: Rig, guarded: bool) -> None:
        self._rig = rig
        accelerator, graph, entry = rig.accelerator, rig.executable.graph, rig.entry
        self.bindings = rig.executable.bindings(rig.index)
        self._frames: list[Mapping] = []
        self._aux: list[tuple[DeviceBuffer, int]] = []
        self.outputs: list[DeviceBuffer] = []
        self.whole: list[DeviceBuffer] = []
        self.imported: list[DeviceBuffer] = []
        for position, frame in enumerate(entry.frames):
            size = graph.buffers[graph.frames[frame].buffer].size_bytes
            descriptor = create_sealed("fenced-conformance", size)
            try:
                self._frames.append(Mapping.of(descriptor, size, writable=True))
                self.imported.append(accelerator.import_frame(Mapping.of(descriptor, size)))
            finally:
                os.close(descriptor)
            self.bindings.bind_frame(position, self.imported[-1])
        for position, aux in enumerate(entry.aux):
            buffer = accelerator.allocate("conformance", graph.buffers[graph.aux[aux].buffer].size_bytes)
            self._aux.append((buffer, aux))
            self.bindings.bind_aux(position, buffer)
        margin = PAGE_BYTES if guarded else 0
        for position, size in enumerate(self.bindings.output_bytes()):
            self.whole.append(accelerator.allocate("conformance", size + 2 * margin))
            self.outputs.append(self.whole[-1].part(margin, size) if guarded else self.whole[-1])
            self.bindings.bind_output(position, self.outputs[-1])

    def fill(self, seed: int) -> None:
        """Golden inputs, as `fenced` makes them for its self-test."""
        graph = self._rig.executable.graph
        for number, frame in enumerate(self._frames):
            golden.fill(frame.array, golden.input_seed(seed, number))
        for number, (buffer, aux) in enumerate(self._aux, len(self._frames)):
            data: NDArray[np.uint8] = np.frombuffer(buffer.view, np.uint8)
            golden.fill_elements(data, graph.aux[aux].dtype, golden.input_seed(seed, number))

    def fill_rounds(self, rounds: int) -> None:
        self._frames[0].array[:4].view(np.uint32)[0] = rounds

    def poison(self, value: int) -> None:
        for buffer in self.outputs:
            _bytes(buffer)[:] = value

    def is_poison(self, value: int) -> bool:
        return all(bool((_bytes(buffer) == value).all()) for buffer in self.outputs)

    def submit(self) -> Fence:
        return self._rig.accelerator.submit(self._rig.executable, self.bindings)

    def output(self) -> bytes:
        return b"".join(bytes(buffer.view) for buffer in self.outputs)

    def inputs(self) -> list[bytes]:
        return [bytes(frame.view) for frame in self._frames] + [bytes(buffer.view) for buffer, _ in self._aux]

    def bind_output_to_frame(self) -> None:
        """What must be refused: an output over the memory of a bound input."""
        frame = self.imported[0]
        if frame.size_bytes >= self.outputs[0].size_bytes:
            self.bindings.bind_output(0, replace(frame, writable=True))
        else:
            self.bindings.bind_frame(0, replace(self.outputs[0], writable=False))


class Rig:
    """A context: loads the module on entry, unloads it on exit. `budget_ns` replaces every entrypoint's budget."""

    def __init__(
        self,
        accelerator: Accelerator,
        module: Module,
        index: int,
        *,
        guarded: bool = False,
        budget_ns: int | None = None,
    ) -> None:
        self.accelerator = accelerator
        self.index = index
        graph = module.graph if budget_ns is None else _with_budget(module.graph, budget_ns)
        self.entry: Entrypoint = graph.entrypoints[index]
        self.executable = accelerator.load(replace(module, graph=graph))
        self._main = Lane(self, guarded)
        self.fill(1)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.accelerator.unload(self.executable)

    def lane(self) -> Lane:
        """Another set of bindings and memory."""
        return Lane(self, guarded=False)

    def reset(self) -> None:
        """State as it was when the module was loaded."""
        self.executable.reset_state()

    def fill(self, seed: int) -> None:
        self._main.fill(seed)

    def fill_rounds(self, rounds: int) -> None:
        self._main.fill_rounds(rounds)

    def submit(self) -> Fence:
        return self._main.submit()

    def output(self) -> bytes:
        return self._main.output()

    def inputs(self) -> list[bytes]:
        return self._main.inputs()

    @property
    def output_bytes(self) -> int:
        return sum(buffer.size_bytes for buffer in self._main.outputs)

    def calibrate(self, target_ns: int, limit_ns: int) -> None:
        """Fill the first frame so that a run lasts about `target_ns`, by the quickest of some trials."""
        rounds = 1
        took_ns = self._trial(rounds, limit_ns)
        while took_ns < _TRIAL_LEAST_NS:
            rounds *= 4
            if rounds > _TRIAL_MOST_ROUNDS:
                raise CheckFailed(f"the device reports {took_ns} ns for {rounds // 4} rounds of the long entrypoint")
            took_ns = self._trial(rounds, limit_ns)
        took_ns = min(took_ns, *(self._trial(rounds, limit_ns) for _ in range(4)))  # a busy machine only adds
        self.fill_rounds(min((1 << 32) - 1, max(1, rounds * target_ns // max(1, took_ns))))

    def _trial(self, rounds: int, limit_ns: int) -> int:
        self.fill_rounds(rounds)
        fence = self.submit()
        wait_done(fence, limit_ns)
        if fence.completed_ns < 0:
            raise CheckFailed("the fence signalled, and the device has not said when the run ended")
        return fence.completed_ns - fence.started_ns

    def poison(self, value: int) -> None:
        self._main.poison(value)

    def poison_all(self, value: int) -> None:
        """Outputs with the guards around them."""
        for buffer in self._main.whole:
            _bytes(buffer)[:] = value

    def guards_are(self, value: int) -> bool:
        good = True
        for whole, part in zip(self._main.whole, self._main.outputs, strict=True):
            data, at = _bytes(whole), part.offset - whole.offset
            good &= bool((data[:at] == value).all() and (data[at + part.size_bytes :] == value).all())
        return good

    def kept(self, value: int) -> list[NDArray[np.bool_]]:
        """Per output, which bytes hold `value`."""
        return [_bytes(buffer) == value for buffer in self._main.outputs]

    @staticmethod
    def count_both(one: list[NDArray[np.bool_]], two: list[NDArray[np.bool_]]) -> int:
        """Bytes that kept the first poison in one run and the second in the other."""
        return sum(int(np.count_nonzero(a & b)) for a, b in zip(one, two, strict=True))

    def is_poison(self, value: int) -> bool:
        return self._main.is_poison(value)

    def has_poison_words(self) -> bool:
        """Whether an aligned 8-byte word still holds the poison 0xA5."""
        for buffer in self._main.outputs:
            data = _bytes(buffer)
            words = data[: data.size // 8 * 8].view(np.uint64)
            if (words == 0xA5A5A5A5A5A5A5A5).any() or (data.size < 8 and (data == 0xA5).all()):
                return True
        return False

    @staticmethod
    def readable_within(fence: Fence, limit_ns: int) -> bool:
        poller = select.poll()
        poller.register(fence.fileno(), select.POLLIN)
        return bool(poller.poll(limit_ns // 1_000_000))


def _bytes(buffer: DeviceBuffer) -> NDArray[np.uint8]:
    return np.frombuffer(buffer.view, np.uint8)


def _with_budget(graph: Graph, budget_ns: int) -> Graph:
    return replace(graph, entrypoints=tuple(replace(entry, budget_ns=budget_ns) for entry in graph.entrypoints))
