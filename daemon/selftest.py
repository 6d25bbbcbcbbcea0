"""Runs a loaded model on its signed golden vectors, then warms it up. Nothing is served before this has passed.

Inputs are made from each vector's seed (`abi.golden`), outputs must be within the contract's tolerance, and two
different inputs must give different outputs: a bundle whose kernels write constants is signed but dead. State starts
from its initial value in every vector. An entrypoint without outputs is held to the states it writes, bit for bit.
Runs on the loading thread; the executable serves nobody yet.
"""

from dataclasses import dataclass

from abi import golden
from abi.graph import Entrypoint, GoldenVector, NanPolicy, Output, StateBuffer
from daemon.outputs import FiniteCheck, differing_bytes, worst_difference
from daemon.refusal import ModelCode, ModelRefused, Step
from hal.accelerator import Accelerator, DeviceBuffer, Executable
from hal.bindings import Bindings, golden_bytes, written_states
from hal.canary import Canary, uncovered_bytes
from hal.error import HalError
from hal.fence import FenceStatus

WARM_UP_RUNS = 3
_SLACK_NS = 1_000_000_000  # beyond the budget, for a wake-up of a busy machine


@dataclass(frozen=True)
class TestReport:
    """What the self-test saw: how many vectors, and the fastest warm run in nanoseconds by entrypoint."""

    vectors: int
    fastest_run_ns: tuple[int, ...]


def _fail(code: ModelCode | str, what: str, expected: str, found: str) -> ModelRefused:
    todo = "compile the model again; if it stays so, this machine computes otherwise than the lab's"
    return ModelRefused(Step.SELF_TEST, code, what, expected=expected, found=found, todo=todo)


class _Bench:
    """One entrypoint with memory for its inputs and outputs."""

    def __init__(self, accelerator: Accelerator, executable: Executable, index: int) -> None:
        self._accelerator = accelerator
        self._executable = executable
        self.index = index
        graph = executable.graph
        self.entry: Entrypoint = graph.entrypoints[index]
        self.bindings: Bindings = executable.bindings(index)
        self._inputs: list[tuple[DeviceBuffer, int | None]] = []  # with the aux index, None for a frame
        for position, frame in enumerate(self.entry.frames):
            buffer = self._allocate(graph.frames[frame].buffer)
            self.bindings.bind_frame(position, buffer)
            self._inputs.append((buffer, None))
        for position, aux in enumerate(self.entry.aux):
            buffer = self._allocate(graph.aux[aux].buffer)
            self.bindings.bind_aux(position, buffer)
            self._inputs.append((buffer, aux))
        self._outputs: dict[int, DeviceBuffer] = {}
        self._canaries: dict[int, Canary] = {}
        for position, number in enumerate(self.bindings.output_buffers):
            self._outputs[number] = self._allocate(number)
            self.bindings.bind_output(position, self._outputs[number])
            self._canaries[number] = Canary(self._outputs[number].view)

    def _allocate(self, buffer: int) -> DeviceBuffer:
        return self._accelerator.allocate("self-test", self._executable.graph.buffers[buffer].size_bytes)

    def fill(self, seed: int) -> None:
        for number, (buffer, aux) in enumerate(self._inputs):
            data, part = buffer.mapping.array, golden.input_seed(seed, number)
            if aux is None:
                golden.fill(data, part)
            else:
                golden.fill_elements(data, self._executable.graph.aux[aux].dtype, part)

    def run(self) -> int:
        """One run on the device; returns its duration in ns of the device's clock. Raises ModelRefused."""
        for canary in self._canaries.values():
            canary.poison()
        duration_ns = self._run()
        for number, canary in self._canaries.items():
            if not canary.written():
                what = f"run of entrypoint {self.entry.name}, output buffer {number}"
                raise _fail(ModelCode.CANARY, what, "every byte written", "poison left")
        return duration_ns

    def prove_coverage(self) -> None:
        """Two runs over opposite poisons for each output: every byte must be written. Raises ModelRefused."""
        for number, buffer in self._outputs.items():
            left = uncovered_bytes(buffer.view, self._run_once)
            if left:
                what = f"entrypoint {self.entry.name}, output buffer {number}"
                raise _fail(ModelCode.COVERAGE, what, "every byte written", f"{left} bytes left as they were")

    def _run_once(self) -> None:
        self._run()

    def _run(self) -> int:
        fence = self._accelerator.submit(self._executable, self.bindings)
        status = fence.wait(fence.submitted_ns + self.entry.budget_ns + _SLACK_NS)
        what = f"run of entrypoint {self.entry.name}"
        if status is FenceStatus.ACTIVE:
            raise _fail(ModelCode.HANG, what, f"an end within {self.entry.budget_ns} ns", "none")
        if status is FenceStatus.ERROR:
            raise _fail(ModelCode.DEVICE, what, "a signalled fence", str(fence.error))
        return fence.completed_ns - fence.started_ns

    def outputs(self) -> list[tuple[Output, memoryview]]:
        graph = self._executable.graph
        found = []
        for index in self.entry.outputs:
            output = graph.outputs[index]
            view = output.view
            found.append((output, self._outputs[output.buffer].view[view.offset : view.offset + view.size_bytes]))
        return found

    def states(self) -> list[tuple[StateBuffer, memoryview]]:
        """The states that the entrypoint writes, as the last run left them."""
        graph = self._executable.graph
        found = [graph.states[index] for index in written_states(graph, self.entry)]
        return [(state, self._executable.state(state.name)) for state in found]


def self_test(accelerator: Accelerator, executable: Executable, goldens: memoryview) -> TestReport:
    """Runs every golden vector and the warm-up. Raises ModelRefused; `goldens` is the bundle's blob."""
    graph = executable.graph
    fastest = []
    try:
        for index in range(len(graph.entrypoints)):
            bench = _Bench(accelerator, executable, index)
            vectors = [vector for vector in graph.goldens if vector.entrypoint == index]
            _run_vectors(bench, executable, vectors, goldens)
            bench.prove_coverage()
            fastest.append(min(bench.run() for _ in range(WARM_UP_RUNS)))
            executable.reset_state()
    except HalError as error:
        raise _fail(f"self-test-{error.code.value}", error.what, error.expected, error.found) from error
    return TestReport(len(graph.goldens), tuple(fastest))


def _run_vectors(bench: _Bench, executable: Executable, vectors: list[GoldenVector], goldens: memoryview) -> None:
    if len({vector.seed for vector in vectors}) < 2:
        what = f"goldens of entrypoint {bench.entry.name}"
        raise _fail(ModelCode.GOLDENS, what, "at least two vectors with different seeds", str(len(vectors)))
    seen: dict[bytes, int] = {}
    size = golden_bytes(executable.graph, bench.entry)
    for vector in vectors:
        end = vector.output_offset + vector.output_bytes
        if vector.output_bytes != size or end > len(goldens):
            what = f"golden vector with seed {vector.seed}"
            expected, found = f"{size} bytes within {len(goldens)}", f"{vector.output_bytes} bytes up to {end}"
            raise _fail(ModelCode.GOLDENS, what, expected, found)
        executable.reset_state()
        bench.fill(vector.seed)
        bench.run()
        signed = goldens[vector.output_offset : end]
        everything = (
            _compare_outputs(bench, vector, signed) if bench.entry.outputs else _compare_states(bench, vector, signed)
        )
        other = seen.setdefault(everything, vector.seed)
        if other != vector.seed:
            what = f"golden vectors with seeds {other} and {vector.seed}"
            raise _fail(ModelCode.CONSTANT, what, "different results for different inputs", "the same bytes")


def _compare_outputs(bench: _Bench, vector: GoldenVector, signed: memoryview) -> bytes:
    """Holds every output to its signed bytes and to its NaN policy; returns all of them. Raises ModelRefused."""
    at = 0
    for output, data in bench.outputs():
        difference = worst_difference(output, data, signed[at : at + len(data)])
        if difference is not None:
            what = f"golden vector with seed {vector.seed}, output {output.view.name}"
            raise _fail(ModelCode.GOLDEN, what, "the signed output", difference)
        at += len(data)
        _require_finite(output, data)
    return b"".join(bytes(data) for _, data in bench.outputs())


def _compare_states(bench: _Bench, vector: GoldenVector, signed: memoryview) -> bytes:
    """Holds every written state to its signed bytes; returns all of them. Raises ModelRefused."""
    at = 0
    for state, data in bench.states():
        difference = differing_bytes(data, signed[at : at + len(data)])
        if difference is not None:
            what = f"golden vector with seed {vector.seed}, state {state.name} after entrypoint {bench.entry.name}"
            raise _fail(ModelCode.GOLDEN, what, "the signed state", difference)
        at += len(data)
    return b"".join(bytes(data) for _, data in bench.states())


def _require_finite(output: Output, found: memoryview) -> None:
    if output.view.nan is NanPolicy.REFUSE and not FiniteCheck(output.view.dtype, found)():
        raise _fail(ModelCode.NAN, f"output {output.view.name}", "finite values", "NaN or infinity")
