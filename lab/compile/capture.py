"""Captures the pipeline's launches with tinygrad's JIT and reads them into plain values.

TinyJit with `prune` runs the function once, records the second call, and drops what does not depend on the inputs
(such results are constants: they become weights). What it recorded is a list of calls of compiled kernels on buffers.
Buffers are sorted: a JIT input is a frame, an aux input or a state, as declared; a returned tensor is an output,
anything else a kernel writes is arena, anything else is weights. Only a state among the inputs may be written. Of the
arena only sizes and offsets leave this file, never contents; inputs and outputs have no contents to leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tinygrad import Tensor, TinyJit
from tinygrad.device import Buffer
from tinygrad.engine.realize import estimate_uop, get_call_arg_uops
from tinygrad.helpers import ansistrip
from tinygrad.uop.ops import Ops

from abi.graph import Access, BufferKind
from lab.compile.bounds import require_in_bounds
from lab.compile.placement import Lifetime, place
from lab.compile.refusal import CompileRefusal, CompileRefused

ARENA_ALIGN_BYTES = 256


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel: C source as tinygrad rendered it, and how it uses its arguments, in order."""

    name: str
    source: str
    access: tuple[Access, ...]
    takes_core: bool
    """Whether an `int` with the core's index follows the buffers."""
    cores: int
    groups: tuple[int, ...]
    """Work groups in x, y, z on devices that have them, else empty; `items`: work items of a group."""
    items: tuple[int, ...]
    flops: int
    binary: bytes = b""
    """What tinygrad's compiler made of it; empty on devices whose own driver compiles the source."""
    program: bytes = field(default=b"", compare=False)
    """tinygrad's key of the compiled program."""


@dataclass(frozen=True)
class Span:
    """`size_bytes` from `offset` of buffer `buffer` of the capture."""

    buffer: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class CapturedLaunch:
    """A kernel by index and its arguments."""

    kernel: int
    arguments: tuple[Span, ...]


@dataclass(frozen=True)
class CapturedBuffer:
    """Memory of the capture. `index`: which input of its kind, or which output, it is; `offset`: where in the arena or
    in the weights."""

    kind: BufferKind
    size_bytes: int
    offset: int = 0
    index: int = 0


@dataclass(frozen=True)
class Capture:
    """Everything that the launches need, as values."""

    kernels: tuple[Kernel, ...]
    launches: tuple[CapturedLaunch, ...]
    buffers: tuple[CapturedBuffer, ...]
    arena_bytes: int
    weights: bytes
    output_buffers: tuple[int, ...]
    """For each output of the function its buffer."""

    @property
    def flops(self) -> int:
        """Arithmetic operations of one run, as tinygrad counts them."""
        return sum(self.kernels[one.kernel].flops for one in self.launches)


@dataclass(frozen=True)
class Input:
    """One argument of a function: FRAME, AUX or STATE, its numpy type, and its shape (None: as many bytes as come)."""

    kind: BufferKind
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None


class CapturedFunction:
    """A function of frames, aux inputs and states under TinyJit: `eager` and `captured` runs, and the capture itself.

    Values go in and out as bytes. A run gives the bytes of every output and then those of every state as the function
    left it, so a next step can be given them: no state is kept here.

    device: tinygrad's name of the only device whose kernels and buffers are taken.
    inputs: what the function takes, in order, states last; None: frames only.
    """

    def __init__(
        self, function: Callable[..., list[Any]], device: str = "CPU", inputs: Sequence[Input] | None = None
    ) -> None:
        self._function = function
        self._device = device
        self._inputs = inputs
        self._jit = TinyJit(function, prune=True)

    def eager(self, values: Sequence[bytes]) -> list[bytes]:
        """Output bytes, then state bytes, of an ordinary call, each kernel launched as tinygrad schedules it."""
        tensors = self._tensors(values)
        outputs = self._function(*tensors)
        if outputs:
            Tensor.realize(*outputs)
        return self._bytes(outputs, tensors)

    def record(self, values: Sequence[bytes]) -> None:
        """Makes TinyJit record the function; needs one ordinary call first."""
        for _ in range(2):
            self._jit(*self._tensors(values))

    def _tensors(self, values: Sequence[bytes]) -> list[Any]:
        if self._inputs is None:
            return list(map(_device_frame, values))
        return [_device_tensor(one, value) for one, value in zip(self._inputs, values, strict=True)]

    def _bytes(self, outputs: Sequence[Any], tensors: Sequence[Any]) -> list[bytes]:
        states = [
            tensor
            for one, tensor in zip(self._inputs or (), tensors, strict=self._inputs is not None)
            if one.kind is BufferKind.STATE
        ]
        return [_contents(one) for one in (*outputs, *states)]

    def captured(self, values: Sequence[bytes], *, poison: bool = False) -> list[bytes]:
        """Output bytes, then state bytes, of a replay of the recorded calls.

        `poison` fills arena and outputs with 0xFF (NaN) first: a result that reads what no launch wrote shows it.
        """
        if poison:
            for buffer in self._written():
                poison_bytes = memoryview(bytearray(b"\xff" * buffer.nbytes))
                buffer.copy_from(Buffer("PYTHON", buffer.size, buffer.dtype, opaque=poison_bytes))
        tensors = self._tensors(values)
        outputs = self._jit(*tensors)
        return self._bytes(outputs, tensors)

    def capture(self, weights_align_bytes: int = 64) -> Capture:
        """What was recorded, as values. Raises CompileRefused where a call is not a kernel on this device."""
        captured = self._jit.captured
        kinds = None if self._inputs is None else [one.kind for one in self._inputs]
        return _Reader(captured.linear.src, captured.ret, self._device, weights_align_bytes, kinds).read()

    def _written(self) -> list[Any]:
        written: dict[int, Any] = {}
        for call in self._jit.captured.linear.src:
            arguments = get_call_arg_uops(call)
            for slot in call.src[0].arg.outs:
                if arguments[slot].op is not Ops.PARAM:
                    base = arguments[slot].buffer.base.ensure_allocated()
                    written[id(base)] = base
        return list(written.values())


def _contents(tensor: Any) -> bytes:
    """A tensor's bytes. Its own `data()` has no float16 before Python 3.12."""
    return bytes(tensor.contiguous().realize().uop.buffer.ensure_allocated().as_memoryview())


def _device_frame(frame: bytes) -> Any:
    return Tensor(bytes(frame)).to(None).contiguous().realize()


def _device_tensor(declared: Input, value: bytes) -> Any:
    shape = (len(value) // declared.dtype.itemsize,) if declared.shape is None else declared.shape
    return Tensor(np.frombuffer(value, declared.dtype).reshape(shape).copy()).to(None).contiguous().realize()


class _Reader:
    """Reads the recorded calls in order; buffers get their numbers in the order in which they are first used."""

    def __init__(
        self,
        calls: Sequence[Any],
        outputs: Sequence[Any],
        device: str,
        weights_align_bytes: int,
        kinds: Sequence[BufferKind] | None,
    ) -> None:
        self.kinds = kinds
        self.calls, self.device, self.weights_align_bytes = calls, device, weights_align_bytes
        self.kernels: list[Kernel] = []
        self.kernel_by_key: dict[bytes, int] = {}
        self.launches: list[CapturedLaunch] = []
        self.bases: list[Any] = []
        self.base_index: dict[object, int] = {}
        self.written: set[int] = set()
        self.outputs = [one.uop.buffer for one in outputs]

    def read(self) -> Capture:
        for call in self.calls:
            self._launch(call)
        output_buffers = tuple(self._output(buffer) for buffer in self.outputs)
        buffers, arena_bytes, weights = self._sort(output_buffers)
        return Capture(tuple(self.kernels), tuple(self.launches), buffers, arena_bytes, weights, output_buffers)

    def _launch(self, call: Any) -> None:
        program = call.src[0]
        if program.op is not Ops.PROGRAM:
            raise _foreign(f"call {len(self.launches)}", f"a {program.op.name.lower()} outside the device")
        arguments = get_call_arg_uops(call)
        kernel = self._kernel(program, call)
        spans = tuple(self._span(arguments[slot]) for slot in program.arg.globals)
        for span, access in zip(spans, self.kernels[kernel].access, strict=True):
            if access is not Access.READ:
                self._refuse_written_input(span.buffer)
                self.written.add(span.buffer)
        self.launches.append(CapturedLaunch(kernel, spans))

    def _refuse_written_input(self, buffer: int) -> None:
        base = self.bases[buffer]
        if isinstance(base, tuple) and self._kind(base[0]) is not BufferKind.STATE:
            kind = self._kind(base[0]).name.lower()
            raise CompileRefused(
                CompileRefusal.PIPELINE, f"argument {base[0]} of the pipeline", expected="inputs that are only read",
                found=f"a launch that writes to this {kind}", todo="work on a copy, or declare it a [[state]]",
            )  # fmt: skip

    def _kind(self, slot: int) -> BufferKind:
        return BufferKind.FRAME if self.kinds is None else self.kinds[slot]

    def _kernel(self, program: Any, call: Any) -> int:
        if program.key in self.kernel_by_key:
            return self.kernel_by_key[program.key]
        info = program.arg
        scalars = [one.expr for one in info.vars]
        if scalars not in ([], ["core_id"]):
            raise CompileRefused(
                CompileRefusal.DYNAMIC_SIZE, f"kernel {info.function_name}", expected="fixed sizes",
                found=f"scalar arguments {scalars}", todo="give every size in the spec",
            )  # fmt: skip
        require_in_bounds(program)
        groups, items = info.launch_dims({}) if self.device != "CPU" else ((), ())
        kernel = Kernel(
            name=ansistrip(info.function_name),
            source=program.src[2].arg,
            access=tuple(_access(slot in info.outs, slot in info.ins) for slot in info.globals),
            takes_core=bool(scalars),
            cores=int(info.global_size[0]) if scalars else 1,
            groups=tuple(map(int, groups)),
            items=tuple(map(int, items or (1,) * len(groups))),
            flops=int(estimate_uop(call).ops),
            binary=_binary(program),
            program=program.key,
        )
        self.kernels.append(kernel)
        self.kernel_by_key[program.key] = len(self.kernels) - 1
        return len(self.kernels) - 1

    def _span(self, argument: Any) -> Span:
        if argument.op is Ops.PARAM:
            size = argument.max_numel() * argument.dtype.itemsize
            return Span(self._base(("frame", argument.arg.slot), (argument.arg.slot, size)), 0, size)
        view = argument.buffer
        if view.device.split(":")[0] != self.device:
            raise _foreign(f"launch {len(self.launches)}", f"a buffer on {view.device}")
        return Span(self._base(id(view.base), view.base), view.offset, view.nbytes)

    def _base(self, key: object, base: Any) -> int:
        if key not in self.base_index:
            self.base_index[key] = len(self.bases)
            self.bases.append(base)
        return self.base_index[key]

    def _output(self, buffer: Any) -> int:
        index = self.base_index.get(id(buffer.base))
        if index is None or index not in self.written or buffer.offset != 0:
            raise CompileRefused(
                CompileRefusal.OUTPUT_MISMATCH, "an output of the pipeline", expected="a result of the frames",
                found="a constant or an input", todo="take it out of the spec's outputs",
            )  # fmt: skip
        return index

    def _sort(self, outputs: tuple[int, ...]) -> tuple[tuple[CapturedBuffer, ...], int, bytes]:
        """Kinds and places: arena buffers and weights one after another, each aligned."""
        buffers: list[CapturedBuffer] = []
        weights = bytearray()
        arena = [
            index
            for index, base in enumerate(self.bases)
            if index in self.written and index not in outputs and not isinstance(base, tuple)
        ]
        places, arena_bytes = place([self._lifetime(index) for index in arena], ARENA_ALIGN_BYTES)
        offsets = dict(zip(arena, places, strict=True))
        for index, base in enumerate(self.bases):
            if isinstance(base, tuple):
                kind = self._kind(base[0])
                first = 0 if self.kinds is None else self.kinds.index(kind)
                buffers.append(CapturedBuffer(kind, base[1], index=base[0] - first))
            elif index in outputs:
                buffers.append(CapturedBuffer(BufferKind.OUTPUT, base.nbytes, index=outputs.index(index)))
            elif index in self.written:
                buffers.append(CapturedBuffer(BufferKind.ARENA, base.nbytes, offset=offsets[index]))
            else:
                weights += bytes(-len(weights) % self.weights_align_bytes)
                buffers.append(CapturedBuffer(BufferKind.WEIGHTS, base.nbytes, offset=len(weights)))
                weights += bytes(base.as_memoryview())
        return tuple(buffers), arena_bytes, bytes(weights)

    def _lifetime(self, base: int) -> Lifetime:
        uses = [at for at, one in enumerate(self.launches) if any(span.buffer == base for span in one.arguments)]
        return Lifetime(self.bases[base].nbytes, uses[0], uses[-1])


def variant(kernel: Kernel, program: Any) -> Kernel | None:
    """The kernel as another program of the same arguments for the CPU; None where it uses them otherwise."""
    info = program.arg
    access = tuple(_access(slot in info.outs, slot in info.ins) for slot in info.globals)
    scalars = [one.expr for one in info.vars]
    if access != kernel.access or scalars not in ([], ["core_id"]):
        return None
    return replace(
        kernel, name=ansistrip(info.function_name), source=program.src[2].arg, takes_core=bool(scalars),
        cores=int(info.global_size[0]) if scalars else 1, binary=b"", program=program.key,
    )  # fmt: skip


def _binary(program: Any) -> bytes:
    binary = program.src[3].arg if len(program.src) > 3 else None
    return binary if isinstance(binary, bytes) else b""


def _access(is_output: bool, is_input: bool) -> Access:
    if is_output:
        return Access.READ_WRITE if is_input else Access.WRITE
    return Access.READ


def _foreign(what: str, found: str) -> CompileRefused:
    return CompileRefused(
        CompileRefusal.FOREIGN_DEVICE, what, expected="kernels on the target device only", found=found,
        todo="compute this value before the capture, or take the operator out of the model",
    )  # fmt: skip
