"""Dispatch: from submit to the fence seen by Python, against tinygrad's TinyJit call and synchronize.

Both run the same kernels on the same device, rendered by tinygrad from one chain of small additions: TinyJit its own
way, ours packed as a bundle's code and launched by the driver (on the CPU by the queue runtime linked into it). The
work of a kernel is a few hundred nanoseconds, so what is timed is the way to it. Samples of both sides alternate, so
that a busy moment of the machine hits both, and their output bytes must be equal.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from abi.graph import Graph, Program
from hal.accelerator import Accelerator, DeviceOptions, Module, open_accelerator
from lab.bench.chain import FRAME, FRAME_BYTES, Step, bind, chain_graph
from lab.bench.row import Row, make_row
from lab.compile.spec import TargetSpec
from lab.compile.target import Target

LAUNCHES = (1, 50, 200)
CPUS = {"x86_64": "x86_64_v3", "aarch64": "generic"}
REACH_AT_200 = 100.0
_PEER_BATCH = 20


def run(repetitions: int = 200, driver: str = "cpu") -> list[Row]:
    """One row for each of LAUNCHES. `repetitions`: timed runs of ours; the peer is timed a quarter as often.

    On the CPU both sides, and our worker, keep to one core; further rows leave our worker to the scheduler. With
    `spin_us` 0 that wakes it, and then us, on a core that on an idle machine sleeps. Raises CompileRefused where this
    machine has no device for `driver`.
    """
    target = open_bench_target(driver)
    with target.context():
        if driver != "cpu":
            return _rows(target, driver, DeviceOptions(), LAUNCHES, repetitions)
        allowed = os.sched_getaffinity(0)
        core = max(allowed)
        os.sched_setaffinity(0, {core})
        try:
            rows = _rows(target, driver, DeviceOptions(pin_cores=(core,)), LAUNCHES, repetitions)
        finally:
            os.sched_setaffinity(0, allowed)
        for label, options in (("any core", DeviceOptions()), ("any core, spin_us 0", DeviceOptions(spin_us=0))):
            (free,) = _rows(target, driver, options, LAUNCHES[-1:], repetitions)
            note = free.note.replace("one core", "any core")
            rows.append(replace(free, name=f"{free.name}, {label}", reach=0.0, note=note))
        return rows


def _rows(target: Target, driver: str, options: DeviceOptions, sizes: Sequence[int], repetitions: int) -> list[Row]:
    accelerator = open_accelerator(driver, options)
    try:
        return [_row(accelerator, target, launches, repetitions) for launches in sizes]
    finally:
        accelerator.close()


def open_bench_target(driver: str) -> Target:
    """This machine as a compile target of `driver`, with one thread."""
    arch = platform.machine()
    if driver == "opencl":
        from lab.compile.target_opencl import OpenClTarget  # noqa: PLC0415 (only where it is measured)

        return OpenClTarget(TargetSpec(driver, arch, "", 1))
    if driver == "hcq":
        from lab.compile.target_hcq import HcqTarget, local_arch  # noqa: PLC0415

        return HcqTarget(TargetSpec(driver, local_arch(), "", 1))
    from lab.compile.target_cpu import CpuTarget  # noqa: PLC0415

    return CpuTarget(TargetSpec(driver, arch, CPUS[arch], 1))


def _row(accelerator: Accelerator, target: Target, launches: int, repetitions: int) -> Row:
    peer, module, expected = chain(target, launches)
    loaded = bind(accelerator, module)

    ours_ns, peer_ns = alternate(loaded.run, peer, repetitions, max(_PEER_BATCH, repetitions // 4))
    if bytes(loaded.output.view) != expected:
        raise RuntimeError(f"the two sides of {launches} launches compute different bytes")
    accelerator.unload(loaded.executable)
    on_cpu = accelerator.name == "cpu"
    place = "one core" if on_cpu else accelerator.properties().device
    note = f"{launches} launches of {FRAME_BYTES} float additions on {place}; ours waits on the eventfd"
    reach = REACH_AT_200 if on_cpu and launches == LAUNCHES[-1] else 0.0
    name = f"dispatch {launches}" if on_cpu else f"dispatch {accelerator.name} {launches}"
    return make_row(name, ours_ns, peer_ns, "TinyJit call + synchronize", reach=reach, note=note)


def alternate(
    ours: Callable[[], None], peer: Callable[[], None], ours_count: int, peer_count: int
) -> tuple[list[int], list[int]]:
    """Timed samples of both in turn, after a warm-up of each."""
    for _ in range(5):
        ours()
        peer()
    ours_ns: list[int] = []
    peer_ns: list[int] = []
    each = -(-ours_count // peer_count)
    for _ in range(peer_count):
        peer_ns.append(_timed(peer))
        ours_ns.extend(_timed(ours) for _ in range(each))
    return ours_ns, peer_ns


def _timed(act: Callable[[], None]) -> int:
    start = time.perf_counter_ns()
    act()
    return time.perf_counter_ns() - start


def chain(target: Target, launches: int, *, synchronize: bool = True) -> tuple[Callable[[], None], Module, bytes]:
    """The peer's call, our module, and the output's bytes, of `launches` dependent kernels; in the target's context.

    synchronize: whether the peer's call waits for the device.
    """
    from tinygrad import Device, Tensor, TinyJit, dtypes  # noqa: PLC0415 (after the compiler's environment is set)
    from tinygrad.helpers import Context  # noqa: PLC0415

    from lab.compile.capture import CapturedFunction  # noqa: PLC0415

    def function(frame: Any) -> list[Any]:
        value = frame.cast(dtypes.float32).contiguous()
        for _ in range(1, launches):
            value = (value + 1).contiguous()
        return [value]

    recorded = CapturedFunction(function, target.tinygrad_device)
    expected = recorded.eager([FRAME])[0]
    recorded.record([FRAME])
    capture = recorded.capture()
    if len(capture.launches) != launches:
        raise RuntimeError(f"tinygrad made {len(capture.launches)} kernels of a chain of {launches}")
    jit = TinyJit(function)
    tensor = Tensor(FRAME).to(None).contiguous().realize()

    def peer() -> None:
        jit(tensor)
        if synchronize:
            Device[target.tinygrad_device].synchronize()

    with Context(JIT=1):  # tinygrad's default: calls are batched into one graph
        for _ in range(3):
            peer()
    code = target.code(capture)
    return peer, Module(_graph(capture, target, len(code)), memoryview(code), memoryview(b"")), expected


def _graph(capture: Any, target: Target, code_bytes: int) -> Graph:
    programs = [
        Program(k.name, target.symbol(index), k.access, *target.code_range(index, code_bytes), k.flops)
        for index, k in enumerate(capture.kernels)
    ]
    steps = [Step(one.kernel, *target.launch_size(capture.kernels[one.kernel])) for one in capture.launches]
    return chain_graph(programs, steps, driver=target.driver, align_bytes=target.align_bytes)
