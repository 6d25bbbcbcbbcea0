"""A hardware queue that holds one entrypoint's whole run, bound once; each run only patches it and submits it.

What varies from run to run are variables in the queue: the timeline's address and value, and where the bound buffers
lie. tinygrad's queue keeps a table of the words that depend on them. They are evaluated here, not by tinygrad, which
would make Python code at run time; the expressions are sums, masks and shifts of a variable.

A lane is busy from submit until its run has ended, because the device reads the patched words; an entrypoint has as
many lanes as runs are handed to the device ahead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from abi.graph import BufferKind, Entrypoint, Graph, Launch
from hal.bindings import bound_buffers
from hal.error import HalCode, HalError
from hal.hcq_device import HcqDevice

Locate = Callable[[int], int]
"""The device's address of a buffer that is not bound at each run."""
Values = list[int]
"""The variables: the timeline signal's address, the value to wait for, then each bound buffer's address."""
SIGNAL, AFTER, FIRST_BOUND = range(3)
_BOUND_KINDS = (BufferKind.FRAME, BufferKind.AUX, BufferKind.OUTPUT)
_ARGUMENTS_ALIGN_BYTES = 256  # NV addresses its launch descriptors, which lie behind the arguments, in 256-byte units
_INT32 = range(-(1 << 31), 1 << 31)
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "ADD": operator.add, "MUL": operator.mul, "AND": operator.and_, "OR": operator.or_, "SHR": operator.rshift,
    "SHL": operator.lshift,
}  # fmt: skip


class Programs:
    """The code blob's kernels in device memory; launches of one program share it."""

    def __init__(self, device: HcqDevice, graph: Graph, code: memoryview) -> None:
        self._device, self._graph, self._code = device, graph, code
        self._loaded: dict[tuple[int, int], Any] = {}

    def of(self, launch: Launch) -> Any:
        """The launch's program. Raises HalError CODE."""
        key = (launch.program, len(launch.values))
        if key not in self._loaded:
            one = self._graph.programs[launch.program]
            binary = bytes(self._code[one.code_offset : one.code_offset + one.code_bytes])
            self._loaded[key] = self._device.program(binary, one.symbol, len(launch.values))
        return self._loaded[key]


class Lane:
    """See above. started_ns and completed_ns are valid when the run has ended, in the device's clock."""

    def __init__(self, device: HcqDevice, graph: Graph, entry: Entrypoint, programs: Programs, locate: Locate) -> None:
        self._device, self._graph, self._entry, self._programs = device, graph, entry, programs
        self._locate = locate
        self.busy = False
        self._arguments: Any = None
        self._queue: Any = None
        self._patches: list[_Patch] = []
        try:
            self._build()
        except BaseException:
            self.release()
            raise

    def submit(self, values: Values) -> None:
        """Patch what changed and ring the device's doorbell; the device's lock is held."""
        if self._scratch != self._device.scratch:
            self._build()
        for patch in self._patches:
            patch.apply(values)
        self._queue.submit(self._device.raw)

    @property
    def started_ns(self) -> int:
        return self._device.stamp_ns(self._start)

    @property
    def completed_ns(self) -> int:
        return self._device.stamp_ns(self._end)

    def release(self) -> None:
        """Give the queue and its arguments back; only while it is not busy. Idempotent."""
        if self._queue is not None:
            self._device.give_back(self._queue)
        self._queue, self._patches = None, []
        if self._arguments is not None:
            self._device.free(self._arguments)
            self._arguments = None

    def _build(self) -> None:
        from tinygrad.dtype import dtypes  # noqa: PLC0415 (loaded with the device)
        from tinygrad.uop.ops import UOp  # noqa: PLC0415

        if self._arguments is not None:
            self.release()
        bound = bound_buffers(self._graph, self._entry)
        names = ["signal", "after", *(f"bound{slot}" for slot in range(len(bound)))]
        variables = [UOp.variable(name, 0, (1 << 64) - 1, dtypes.uint64) for name in names]
        first, count = self._entry.first_launch, self._entry.launch_count
        launches = self._graph.launches[first : first + count]
        programs = [self._programs.of(one) for one in launches]
        raw = self._device.raw
        timeline = raw.signal_t(self._device.placed(variables[SIGNAL], 16), owner=raw, is_timeline=True)
        self._start, self._end = self._device.new_signal(), self._device.new_signal()
        self._scratch = self._device.scratch
        queue = raw.hw_compute_queue_t()
        queue.memory_barrier()
        queue.wait(timeline, variables[AFTER])
        queue.timestamp(self._start)
        slots = {buffer: variables[FIRST_BOUND + slot] for slot, buffer in enumerate(bound)}
        self._launch_all(queue, launches, programs, slots)
        queue.timestamp(self._end)
        queue.signal(timeline, variables[AFTER] + 1)
        queue.bind(raw)
        self._queue = queue
        self._patches = _patches(queue, {one.expr: at for at, one in enumerate(variables)})

    def _launch_all(self, queue: Any, launches: tuple[Launch, ...], programs: list[Any], slots: dict[int, Any]) -> None:
        at, places = 0, []
        for program in programs:
            places.append(at)
            at += -(-int(program.kernargs_alloc_size) // _ARGUMENTS_ALIGN_BYTES) * _ARGUMENTS_ALIGN_BYTES
        self._arguments = self._device.allocate(max(at, _ARGUMENTS_ALIGN_BYTES), host_writes=True)
        for launch, program, place in zip(launches, programs, places, strict=True):
            _check(launch, program)
            buffers = []
            for one in launch.arguments:
                is_bound = self._graph.buffers[one.buffer].kind in _BOUND_KINDS
                base = slots[one.buffer] if is_bound else self._locate(one.buffer)
                buffers.append(self._device.placed(base + one.offset if one.offset else base, one.size_bytes))
            room = self._arguments.offset(place, int(program.kernargs_alloc_size))
            filled = program.fill_kernargs(tuple(buffers), tuple(launch.values), room)
            queue.exec(program, filled, launch.global_size, launch.local_size)


class _Patch:
    """The words of a queue that hold one expression of the variables."""

    def __init__(self, evaluate: Callable[[Values], int]) -> None:
        self._evaluate = evaluate
        self._last: int | None = None
        self.words: list[tuple[Any, int, int | None]] = []
        """(memory, index, mask): under a mask only these bits are the expression's."""

    def apply(self, values: Values) -> None:
        value = self._evaluate(values)
        if value != self._last:
            for memory, index, mask in self.words:
                memory[index] = value if mask is None else (memory[index] & ~mask) | value
            self._last = value


def _patches(queue: Any, variables: dict[str, int]) -> list[_Patch]:
    patches = [_Patch(_evaluator(symbol, variables)) for symbol in queue.syms]
    for index, symbol in queue.q_sints:
        patches[symbol].words.append((queue._q, index, None))
    for memory, index, symbol, mask in queue.mv_sints:
        patches[symbol].words.append((memory, index, mask))
    return patches


def _evaluator(expression: Any, variables: dict[str, int]) -> Callable[[Values], int]:
    """A function of the variables' values for one of tinygrad's expressions. Raises HalError CODE for unknown ones."""
    name = expression.op.name
    if expression.is_variable:
        at = variables[expression.expr]
        return lambda values: values[at]
    if name == "CONST":
        constant = int(expression.val)
        return lambda values: constant
    if name == "CAST":
        return _evaluator(expression.src[0], variables)
    if name not in _OPERATIONS or len(expression.src) != 2:
        raise HalError(HalCode.CODE, f"a queue depends on a variable by {name}", expected=", ".join(_OPERATIONS),
                       todo="use the tinygrad version that this driver was made for")  # fmt: skip
    act = _OPERATIONS[name]
    left, right = (_evaluator(one, variables) for one in expression.src)
    return lambda values: act(left(values), right(values))


def _check(launch: Launch, program: Any) -> None:
    given = 8 * len(launch.arguments) + 4 * len(launch.values)
    if given > int(program.kernargs_alloc_size):
        raise HalError(HalCode.CODE, f"kernel {program.name} takes fewer arguments",
                       expected=f"at most {program.kernargs_alloc_size} bytes", found=f"{given}",
                       todo="compile the model again")  # fmt: skip
    for value in launch.values:
        if value not in _INT32:
            raise HalError(HalCode.CODE, f"a scalar argument of kernel {program.name} is no int", found=str(value))
