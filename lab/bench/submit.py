"""Submit: what a frame costs the host on a GPU, from the call until it returns; the device's own time is left out.

Beside `lab.bench.dispatch`, whose times hold the device's too: the same chains of kernels on the same device, the same
bytes. Ours patches a bound queue and rings the doorbell; TinyJit calls its own graph of the same kernels. In between
the device comes to rest, untimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hal.accelerator import Accelerator, open_accelerator
from hal.fence import FenceStatus
from lab.bench import dispatch
from lab.bench.chain import bind
from lab.bench.row import Row, make_row
from lab.compile.target import Target

_WARM_UP = 5
_LIMIT_NS = 60_000_000_000


def run(repetitions: int = 100, driver: str = "hcq") -> list[Row]:
    """One row for each of dispatch.LAUNCHES. Raises CompileRefused where this machine has no device for `driver`."""
    target = dispatch.open_bench_target(driver)
    with target.context():
        accelerator = open_accelerator(driver)
        try:
            return [_row(accelerator, target, launches, repetitions) for launches in dispatch.LAUNCHES]
        finally:
            accelerator.close()


def _row(accelerator: Accelerator, target: Target, launches: int, repetitions: int) -> Row:
    from tinygrad import Device  # noqa: PLC0415 (after the compiler's environment is set)

    peer, module, expected = dispatch.chain(target, launches, synchronize=False)
    loaded = bind(accelerator, module)
    device = Device[target.tinygrad_device]

    def ours() -> int:
        start_ns = time.perf_counter_ns()
        fence = accelerator.submit(loaded.executable, loaded.bindings)
        took_ns = time.perf_counter_ns() - start_ns
        if fence.wait(fence.submitted_ns + _LIMIT_NS) is not FenceStatus.SIGNALED:
            raise RuntimeError(f"the run ended as {fence.status.name}: {fence.error}")
        return took_ns

    def theirs() -> int:
        start_ns = time.perf_counter_ns()
        peer()
        took_ns = time.perf_counter_ns() - start_ns
        device.synchronize()
        return took_ns

    ours_ns, peer_ns = _alternate(ours, theirs, repetitions)
    if bytes(loaded.output.view) != expected:
        raise RuntimeError(f"the two sides of {launches} launches compute different bytes")
    accelerator.unload(loaded.executable)
    note = f"{launches} launches on {accelerator.properties().device}; until the call returns"
    return make_row(f"submit {accelerator.name} {launches}", ours_ns, peer_ns, "TinyJit call", note=note)


def _alternate(ours: Callable[[], int], theirs: Callable[[], int], count: int) -> tuple[list[int], list[int]]:
    """Times of both in turn, after a warm-up of each."""
    for _ in range(_WARM_UP):
        ours()
        theirs()
    samples = [(ours(), theirs()) for _ in range(count)]
    return [one for one, _ in samples], [one for _, one in samples]
