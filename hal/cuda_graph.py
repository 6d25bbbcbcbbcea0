"""The launches of an entrypoint as one CUDA graph: made at load, launched once for a run.

The nodes stand in a line, in the order of the launch table. A run changes only the addresses of the buffers that are
bound to it, in the instantiated graph; what was launched before keeps its own (cuGraphExecKernelNodeSetParams). A
kernel whose parameters or block size do not fit its launch is refused here, before anything runs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from abi.graph import BufferKind, Entrypoint, Graph
from hal.bindings import bound_buffers
from hal.cuda_api import FUNC_MAX_THREADS_PER_BLOCK, CudaApi, KernelNodeParams
from hal.cuda_code import check_cubin
from hal.error import HalCode, HalError

_BOUND = (BufferKind.FRAME, BufferKind.AUX, BufferKind.OUTPUT)
Locate = Callable[[int, int], int]
"""The device address of (buffer, offset) of a buffer that is not bound at each run."""


class Modules:
    """The kernels of a graph, by program. Programs that name one range of the code share one module."""

    def __init__(self, api: CudaApi, graph: Graph, code: memoryview) -> None:
        self._api, self._modules = api, dict[tuple[int, int], int]()
        self.functions: list[int] = []
        try:
            for program in graph.programs:
                span = (program.code_offset, program.code_bytes)
                if span not in self._modules:
                    image = code[span[0] : span[0] + span[1]]
                    check_cubin(image, f"program {program.symbol}")
                    held = ctypes.create_string_buffer(image.tobytes(), image.nbytes)  # read, and copied, in the call
                    self._modules[span] = api.make("cuModuleLoadData", ctypes.addressof(held))
                self.functions.append(api.make("cuModuleGetFunction", self._modules[span], program.symbol.encode()))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Idempotent."""
        for module in self._modules.values():
            self._api.raw("cuModuleUnload")(module)
        self._modules.clear()
        self.functions.clear()


@dataclass(slots=True)
class _Node:
    """A launch: its parameters' cells, and which of them are addresses in the binding of a slot."""

    params: KernelNodeParams
    cells: ctypes.Array[ctypes.c_int64]
    pointers: ctypes.Array[ctypes.c_void_p]
    bound: list[tuple[int, int, int]] = field(default_factory=list)  # cell, slot, offset
    handle: int = 0


class EntryGraph:
    """One entrypoint's instantiated graph. Used by one thread at a time."""

    def __init__(self, api: CudaApi, graph: Graph, entry: Entrypoint, functions: Sequence[int], locate: Locate) -> None:
        self._api, self._functions, self._locate = api, functions, locate
        self._exec = 0
        self.launches = entry.launch_count
        slots = {buffer: slot for slot, buffer in enumerate(bound_buffers(graph, entry))}
        first = entry.first_launch
        self._nodes = [self._node(graph, index, slots) for index in range(first, first + entry.launch_count)]
        self._addresses = [0] * len(slots)
        self._graph = api.make("cuGraphCreate", 0)
        try:
            before = ctypes.c_uint64()
            for node in self._nodes:
                count = 1 if before.value else 0
                node.handle = api.make("cuGraphAddKernelNode", self._graph, ctypes.addressof(before) if count else None,
                                       count, ctypes.addressof(node.params))  # fmt: skip
                before.value = node.handle
            self._exec = api.make("cuGraphInstantiateWithFlags", self._graph, 0)
        except BaseException:
            self.release()
            raise

    def _node(self, graph: Graph, index: int, slots: dict[int, int]) -> _Node:
        launch = graph.launches[index]
        where = f"launch {index} ({graph.programs[launch.program].symbol})"
        function, count = self._functions[launch.program], len(launch.arguments) + len(launch.values)
        sizes = _parameter_bytes(self._api, function)
        wanted = [(8,)] * len(launch.arguments) + [(4, 8)] * len(launch.values)
        if len(sizes) != count or any(size not in good for size, good in zip(sizes, wanted, strict=True)):
            raise HalError(HalCode.CODE, f"{where}: its kernel takes other parameters", expected=f"{count} that fit",
                           found=f"sizes {sizes}", todo="compile the model again")  # fmt: skip
        most = self._api.number("cuFuncGetAttribute", FUNC_MAX_THREADS_PER_BLOCK, function)
        if math.prod(launch.local_size) > most:
            raise HalError(HalCode.CODE, f"{where}: the device cannot run blocks of {launch.local_size} threads",
                           expected=f"at most {most}", todo="compile the model for this GPU")  # fmt: skip
        cells = (ctypes.c_int64 * max(1, count))()
        node = _Node(KernelNodeParams(), cells, (ctypes.c_void_p * max(1, count))())
        for position, argument in enumerate(launch.arguments):
            if graph.buffers[argument.buffer].kind in _BOUND:
                node.bound.append((position, slots[argument.buffer], argument.offset))
            else:
                cells[position] = self._locate(argument.buffer, argument.offset)
        for position, value in enumerate(launch.values, len(launch.arguments)):
            if not -(1 << 8 * sizes[position] - 1) <= value < 1 << 8 * sizes[position] - 1:
                what, size = f"{where}: scalar {value} does not fit", f"{sizes[position]} bytes"
                raise HalError(HalCode.CODE, what, expected=size, todo="compile the model again")
            cells[position] = value  # little endian: a shorter parameter reads the low bytes
        for position in range(count):
            node.pointers[position] = ctypes.addressof(cells) + 8 * position
        node.params.func, node.params.params = function, ctypes.addressof(node.pointers)
        node.params.grid[:], node.params.block[:] = launch.global_size, launch.local_size
        return node

    def bind(self, addresses: Sequence[int]) -> None:
        """The device addresses of the entrypoint's bound buffers, in binding order, for launches from here on."""
        changed = {slot for slot, address in enumerate(addresses) if address != self._addresses[slot]}
        if not changed:
            return
        for node in self._nodes:
            touched = [one for one in node.bound if one[1] in changed]
            for cell, slot, offset in touched:
                node.cells[cell] = addresses[slot] + offset
            if touched:
                at = ctypes.addressof(node.params)
                self._api.call("cuGraphExecKernelNodeSetParams", self._exec, node.handle, at)
        self._addresses[:] = addresses

    def launch(self, stream: int) -> None:
        """Enqueue every launch. Raises HalError; then nothing was."""
        self._api.call("cuGraphLaunch", self._exec, stream)

    def release(self) -> None:
        """Only while nothing of it is in flight. Idempotent."""
        if self._exec:
            self._api.raw("cuGraphExecDestroy")(self._exec)
        if self._graph:
            self._api.raw("cuGraphDestroy")(self._graph)
        self._exec = self._graph = 0


def _parameter_bytes(api: CudaApi, function: int) -> list[int]:
    """The size of each parameter of a kernel: the driver answers CUDA_ERROR_INVALID_VALUE after the last."""
    sizes: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while not api.raw("cuFuncGetParamInfo")(function, len(sizes), ctypes.addressof(offset), ctypes.addressof(size)):
        sizes.append(size.value)
    return sizes
