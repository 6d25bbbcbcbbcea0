"""OpenCL in tests: whether this machine has a device, and the conformance subject as OpenCL C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from abi.graph import Launch, Program
from hal.accelerator import Module
from hal.conformance_rig import Rig
from hal.error import HalCode, HalError
from hal.opencl_api import OpenClApi
from hal.opencl_device import find_device
from hal.opencl_environment import prepare_environment
from lab.compile import opencl
from tests.conformance import subject

ALIGN_BYTES = 256
GROUP = 64


@cache
def why_not() -> str:
    """Why there is no OpenCL device here; empty where there is one."""
    try:
        prepare_environment()
        find_device(OpenClApi())
    except HalError as error:
        return str(error)
    return ""


def require_device() -> None:
    """Skips the test where this machine has no OpenCL device."""
    if why_not():
        pytest.skip(f"no OpenCL device (apt-get install pocl-opencl-icd): {why_not()}")


@dataclass(frozen=True)
class Source:
    """A kernel of the subject in OpenCL C. wide: one work item an element; else one item does all."""

    function: str
    text: str
    wide: bool = True


_I = "int i = get_global_id(0);"
KERNELS = (
    Source("widen", f"__kernel void widen(__global float* o, __global const uchar* a) {{ {_I} o[i] = a[i]; }}"),
    Source("add", f"""__kernel void add(__global float* o, __global const float* a, const int n) {{
      {_I} o[i] = a[i] + n; }}"""),
    Source("rounds", f"""__kernel void rounds(__global float* o, __global const uint* a) {{
      volatile uint x = 1;
      for (uint r = 0; r < a[0]; r++) for (int i = 0; i < 1000; i++) x = x * 1664525u + 1013904223u;
      for (int i = 0; i < {subject.COUNT}; i++) o[i] = (float)a[0] + i; }}""", wide=False),
    Source("total", f"""__kernel void total(__global float* s, __global float* o, __global const uchar* a) {{
      {_I} s[i] += a[i]; o[i] = s[i]; }}"""),
    Source("scale", f"""__kernel void scale(__global float* o, __global const uchar* a, __global const float* k) {{
      {_I} o[i] = a[i] * k[0]; }}"""),
)  # fmt: skip
"""In the order of `subject.KERNELS`."""


def module(budget_ns: int = 5_000_000_000) -> Module:
    """`subject.module` for this machine's OpenCL device: the same graph, kernels and entrypoints."""
    graph = subject.graph(1, budget_ns)
    launches = tuple(replace(one, global_size=_groups(one), local_size=_items(one)) for one in graph.launches)
    code = build(launches)
    programs = tuple(placed(one, index, code) for index, one in enumerate(graph.programs))
    buffers = tuple(replace(one, align_bytes=ALIGN_BYTES) for one in graph.buffers)
    graph = replace(graph, driver="opencl", buffers=buffers, programs=programs, launches=launches)
    return Module(graph, memoryview(code), memoryview(bytes(subject.OUT_BYTES)))


def placed(program: Program, index: int, code: bytes) -> Program:
    """The program with its entry in the one binary."""
    return replace(program, symbol=opencl.symbol(index), code_offset=0, code_bytes=len(code))


@cache
def build(launches: tuple[Launch, ...]) -> bytes:
    """The subject's kernels as one binary, linked for these launches."""
    kernels = []
    for index, kernel in enumerate(KERNELS):
        uses = [
            opencl.OpenClLaunch(one.global_size, one.local_size, tuple(a.size_bytes for a in one.arguments), one.values)
            for one in launches
            if one.program == index
        ]
        kernels.append(opencl.OpenClKernel(kernel.text, kernel.function, tuple(dict.fromkeys(uses))))
    return opencl.build(kernels)


def _groups(launch: Launch) -> tuple[int, int, int]:
    return (subject.COUNT // GROUP if KERNELS[launch.program].wide else 1, 1, 1)


def _items(launch: Launch) -> tuple[int, int, int]:
    return (GROUP if KERNELS[launch.program].wide else 1, 1, 1)


LIMIT_NS = 20_000_000_000
"""Long enough for any run here; a fence that takes longer is lost."""


def refused(act: Callable[[], object], code: HalCode) -> HalError:
    with pytest.raises(HalError) as caught:
        act()
    assert caught.value.code is code, caught.value
    return caught.value


def values(rig: Rig) -> Any:
    return np.frombuffer(rig.output(), np.float32)


def frame_of(rig: Rig) -> Any:
    return np.frombuffer(rig.inputs()[0], np.uint8).astype(np.float32)
