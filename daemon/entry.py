"""One entrypoint of a loaded model, made ready to run: its bindings, aux inputs, output memory, and how long it takes.

Everything is allocated here, once. Output memory rotates, so that a run never writes what the one before it is still
read from; the lighter entrypoint has the primary's outputs (admission proves it) and shares their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from abi.graph import EntryRole, Graph, OutputView
from daemon.aux_inputs import AuxInputs
from daemon.camera_stream import CameraStream
from daemon.models import LoadedModel
from daemon.outputs import FiniteCheck
from daemon.run_times import RunTimes
from daemon.scheduler import Waiting
from hal.accelerator import Accelerator, DeviceBuffer
from hal.bindings import Bindings, written_states
from hal.canary import Canary

_OUTPUT_SETS = 2

Taken = tuple[CameraStream, Waiting]  # a frame of a set that was taken for a run


@dataclass(frozen=True)
class OutputSet:
    """Device memory for one run's outputs, and views of the named ones in the entrypoint's order.

    finite: for each of them. finite_is_written: every byte is part of a number, and the poison of unwritten bytes is a
    NaN in every format: then finite numbers need no look for it.
    """

    buffers: tuple[DeviceBuffer, ...]
    canaries: tuple[Canary, ...]
    views: tuple[memoryview, ...]
    finite: tuple[FiniteCheck, ...]
    finite_is_written: bool

    def poison(self) -> None:
        """Marks every byte as unwritten."""
        for canary in self.canaries:
            canary.poison()

    def written(self) -> bool:
        """Whether every output was written since it was last bound."""
        return all(canary.written() for canary in self.canaries)


class OutputMemory:
    """The output sets that the runs of a model take in turn."""

    def __init__(self, graph: Graph, outputs: tuple[int, ...], bindings: Bindings, accelerator: Accelerator) -> None:
        self._sets = tuple(_make_set(graph, outputs, bindings, accelerator) for _ in range(_OUTPUT_SETS))
        self._next = 0
        self._is_poisoned = False

    def prepare(self) -> None:
        """Poisons the set of the next run, when nobody waits; nothing is written to it until that run."""
        if not self._is_poisoned:
            self._sets[self._next].poison()
            self._is_poisoned = True

    def take(self) -> OutputSet:
        """The set of the next run, poisoned."""
        if not self._is_poisoned:
            self.prepare()
        chosen = self._sets[self._next]
        self._next = (self._next + 1) % _OUTPUT_SETS
        self._is_poisoned = False
        return chosen


def _make_set(graph: Graph, outputs: tuple[int, ...], bindings: Bindings, accelerator: Accelerator) -> OutputSet:
    buffers = tuple(accelerator.allocate("outputs", size) for size in bindings.output_bytes())
    by_number = dict(zip(bindings.output_buffers, buffers, strict=True))
    named = [graph.outputs[index] for index in outputs]
    views = tuple(by_number[one.buffer].view[one.view.offset : one.view.offset + one.view.size_bytes] for one in named)
    finite = tuple(FiniteCheck(one.view.dtype, view) for one, view in zip(named, views, strict=True))
    numbers = [one for one, check in zip(named, finite, strict=True) if check.is_float]
    covered = all(
        covers(buffer.size_bytes, [one.view for one in numbers if one.buffer == number])
        for number, buffer in by_number.items()
    )
    return OutputSet(buffers, tuple(Canary(buffer.view) for buffer in buffers), views, finite, covered)


def covers(size_bytes: int, views: Sequence[OutputView]) -> bool:
    """Whether these views, each at a multiple of its elements' size, leave no byte of a buffer of this size out."""
    end = 0
    for view in sorted(views, key=attrgetter("offset")):
        if view.offset > end or view.offset % view.dtype.item_bytes:
            return False
        end = max(end, view.offset + view.size_bytes)
    return end >= size_bytes


class Entry:
    """Entrypoint `index` of a model.

    positions: which of the primary's frames it takes, in its own order. times: of its runs, submitted to dealt with.
    """

    def __init__(
        self, model: LoadedModel, index: int, aux: AuxInputs, accelerator: Accelerator, share: Entry | None = None
    ) -> None:
        """`share`: the entry whose output memory it takes."""
        graph = model.graph
        self.index = index
        self.contract = graph.entrypoints[index]
        self.bindings = model.executable.bindings(index)
        self.aux = aux.part(self.contract, self.bindings)
        self.positions = tuple(graph.entrypoints[0].frames.index(frame) for frame in self.contract.frames)
        self.times = RunTimes(model.report.fastest_run_ns[index])
        self.writes_state = bool(written_states(graph, self.contract))
        self.outputs: OutputMemory = (
            OutputMemory(graph, self.contract.outputs, self.bindings, accelerator) if share is None else share.outputs
        )

    def bind_frames(self, taken: tuple[Taken, ...]) -> set[Waiting]:
        """Binds a set's frames; returns those that were overwritten since they were submitted (torn)."""
        torn = set()
        for source, frame in taken:
            buffer = source.bind(frame)
            if buffer is None:
                torn.add(frame)
            else:
                self.bindings.bind_frame(self.positions.index(frame.stream), buffer)
        return torn

    def bind_outputs(self) -> OutputSet:
        """Binds the next output memory, poisoned."""
        outputs = self.outputs.take()
        for position, buffer in enumerate(outputs.buffers):
            self.bindings.bind_output(position, buffer)
        return outputs

    def let_go(self) -> None:
        """Keeps no hold on frame memory: its camera may be gone."""
        self.bindings.clear()
        self.aux.bind()


class Entries:
    """The entrypoints of a model that the daemon runs. `active`: the one that publishes, primary or lighter."""

    def __init__(self, model: LoadedModel, aux: AuxInputs, accelerator: Accelerator) -> None:
        self.primary = self.active = Entry(model, 0, aux, accelerator)
        self.lighter: Entry | None = None
        self.state_only: Entry | None = None
        for index, entry in enumerate(model.graph.entrypoints):
            if entry.role is EntryRole.LIGHTER:
                self.lighter = Entry(model, index, aux, accelerator, self.primary)
            elif entry.role is EntryRole.STATE_ONLY:
                self.state_only = Entry(model, index, aux, accelerator)
        self.all = tuple(one for one in (self.primary, self.lighter, self.state_only) if one is not None)

    def choose(self, *, lighter: bool) -> Entry:
        """Lets the primary or the lighter publish from here, and returns it."""
        self.active = self.lighter if lighter and self.lighter is not None else self.primary
        return self.active

    def let_go(self) -> None:
        """Keeps no hold on frame memory: a camera may be gone."""
        for entry in self.all:
            entry.let_go()

    def unbind(self) -> None:
        """Keeps no hold on any memory, for good."""
        for entry in self.all:
            entry.bindings.clear()
