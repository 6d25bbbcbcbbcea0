"""The launches of a module as kernels ready to be enqueued: one cl_kernel each, with its constant arguments set.

Programs come from the code blob's ranges; programs that name the same range share one build. A kernel whose argument
count or group size does not fit its launch is refused here, before anything runs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from abi.graph import BufferKind, Graph, Launch
from hal.bindings import bound_buffers
from hal.error import HalCode, HalError
from hal.memory import Mapping
from hal.opencl_memory import OpenClContext

BOUND_KINDS = (BufferKind.FRAME, BufferKind.AUX, BufferKind.OUTPUT)
_INVALID_ARGUMENT_SIZE = "CL_INVALID_ARG_SIZE"
Locate = Callable[[int, int, int], int]
"""The handle for (buffer, offset, size_bytes) of a buffer that is not bound at each run."""


@dataclass(slots=True)
class BoundArgument:
    """An argument that each run sets: `size_bytes` from `offset` of binding `slot`. `serial`: what it is set to."""

    kernel: int
    position: int
    slot: int
    offset: int
    size_bytes: int
    serial: int = 0


@dataclass(slots=True)
class EntryPlan:
    """An entrypoint's launches in order, as (kernel, global sizes, local sizes): addresses of three size_t."""

    launches: list[tuple[int, int, int]] = field(default_factory=list)
    bound: list[BoundArgument] = field(default_factory=list)
    sizes: list[ctypes.Array[ctypes.c_size_t]] = field(default_factory=list)


class Launches:
    """Programs and kernels in one generation of the context. `entries`: a plan for each entrypoint."""

    def __init__(self, context: OpenClContext, graph: Graph, code: Mapping, locate: Locate) -> None:
        self._context, self._api, self._graph, self._code = context, context.api, graph, code
        self._programs: dict[tuple[int, int], int] = {}
        self._kernels: list[int] = []
        self.entries: list[EntryPlan] = []
        try:
            for entry in graph.entrypoints:
                slots = {buffer: slot for slot, buffer in enumerate(bound_buffers(graph, entry))}
                plan = EntryPlan()
                for index in range(entry.first_launch, entry.first_launch + entry.launch_count):
                    self._plan(plan, index, slots, locate)
                self.entries.append(plan)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let go of kernels and programs. Idempotent."""
        for kernel in self._kernels:
            self._api.raw("clReleaseKernel")(kernel)
        for program in self._programs.values():
            self._api.raw("clReleaseProgram")(program)
        self._kernels.clear()
        self._programs.clear()
        self.entries.clear()

    def _plan(self, plan: EntryPlan, index: int, slots: dict[int, int], locate: Locate) -> None:
        launch = self._graph.launches[index]
        program = self._graph.programs[launch.program]
        binary = self._program(program.code_offset, program.code_bytes)
        kernel = self._api.make("clCreateKernel", binary, program.symbol.encode())
        self._kernels.append(kernel)
        self._check(kernel, index, launch)
        for position, argument in enumerate(launch.arguments):
            if self._graph.buffers[argument.buffer].kind in BOUND_KINDS:
                slot = slots[argument.buffer]
                plan.bound.append(BoundArgument(kernel, position, slot, argument.offset, argument.size_bytes))
            else:
                self.set_handle(kernel, position, locate(argument.buffer, argument.offset, argument.size_bytes))
        for position, value in enumerate(launch.values, len(launch.arguments)):
            self._set_value(kernel, position, value)
        groups, items = launch.global_size, launch.local_size
        whole = (ctypes.c_size_t * 3)(*(g * i for g, i in zip(groups, items, strict=True)))
        local = (ctypes.c_size_t * 3)(*items)
        plan.sizes += [whole, local]
        plan.launches.append((kernel, ctypes.addressof(whole), ctypes.addressof(local)))

    def set_handle(self, kernel: int, position: int, handle: int) -> None:
        """Give a kernel the memory object `handle` as argument `position`."""
        cell = ctypes.c_void_p(handle)
        self._api.call("clSetKernelArg", kernel, position, ctypes.sizeof(cell), ctypes.addressof(cell))

    def _set_value(self, kernel: int, position: int, value: int) -> None:
        """Scalars are `int` or `long`; the driver knows which size its kernel takes."""
        for cell in (ctypes.c_int32(value), ctypes.c_int64(value)):
            status = self._api.raw("clSetKernelArg")(kernel, position, ctypes.sizeof(cell), ctypes.addressof(cell))
            if not status and cell.value == value:
                return
            if status and self._api.status_name(status) != _INVALID_ARGUMENT_SIZE:
                break
        raise HalError(HalCode.CODE, f"scalar argument {position} cannot be set", expected="an int or a long",
                       found=str(value), todo="compile the model again")  # fmt: skip

    def _program(self, offset: int, size_bytes: int) -> int:
        """The built program of a range of the code."""
        handle = self._programs.get((offset, size_bytes))
        if handle is None:
            device = ctypes.c_void_p(self._context.device.handle)
            length, verdict = ctypes.c_size_t(size_bytes), ctypes.c_int32()
            start = ctypes.c_void_p(self._code.address + offset)
            handle = self._api.make(
                "clCreateProgramWithBinary", self._context.handle, 1, ctypes.addressof(device),
                ctypes.addressof(length), ctypes.addressof(start), ctypes.addressof(verdict),
            )  # fmt: skip
            self._programs[offset, size_bytes] = handle
            if verdict.value:
                raise self._api.error("clCreateProgramWithBinary", verdict.value)
            self._api.call("clBuildProgram", handle, 1, ctypes.addressof(device), None, None, None)
        return handle

    def _check(self, kernel: int, index: int, launch: Launch) -> None:
        where = f"launch {index} ({self._graph.programs[launch.program].symbol})"
        takes = int.from_bytes(self._api.info("clGetKernelInfo", "CL_KERNEL_NUM_ARGS", kernel), "little")
        given = len(launch.arguments) + len(launch.values)
        if takes != given:
            raise HalError(HalCode.CODE, f"{where}: its kernel takes another number of arguments",
                           expected=str(takes), found=str(given), todo="compile the model again")  # fmt: skip
        info, device = "clGetKernelWorkGroupInfo", self._context.device.handle
        most = int.from_bytes(self._api.info(info, "CL_KERNEL_WORK_GROUP_SIZE", kernel, device), "little")
        fixed = self._api.info(info, "CL_KERNEL_COMPILE_WORK_GROUP_SIZE", kernel, device)
        wanted = b"".join(size.to_bytes(8, "little") for size in launch.local_size)
        if math.prod(launch.local_size) > most or (any(fixed) and fixed != wanted):
            raise HalError(HalCode.CODE, f"{where}: the device cannot run groups of {launch.local_size} items",
                           expected=f"at most {most} items", todo="compile the model for this device")  # fmt: skip
