"""Dispatch when every core is taken: the slowest of a thousand submits, with and without a real-time priority.

One busy process a core, of the ordinary policy. Ours: the worker, or it and its caller, by SCHED_FIFO; the peer:
the same by the ordinary policy. Batches alternate. The value is the 99.9th percentile, from submit to the fence seen.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from hal.accelerator import DeviceOptions, open_accelerator
from hal.error import HalCode, HalError
from lab.bench import synthetic
from lab.bench.busy import busy
from lab.bench.chain import Chain, bind
from lab.bench.row import Row, quantile

FIFO_PRIORITY = 10
_LAUNCHES, _SHARE = 200, 0.999
_BATCH = 100
_PEER = "the ordinary policy"


def run(samples: int = 2000) -> list[Row]:
    """Two rows of `samples` on each side; empty, with the reason on stderr, without the right to priorities."""
    module = synthetic.module(_LAUNCHES, threads=1, cores=1, rounds=0)
    with ExitStack() as stack:
        chains = []
        for priority in (0, FIFO_PRIORITY):
            accelerator = open_accelerator("cpu", DeviceOptions(fifo_priority=priority))
            stack.callback(accelerator.close)
            try:
                chains.append(bind(accelerator, module))
            except HalError as error:
                if error.code is not HalCode.NOT_PERMITTED:
                    raise
                print(f"stress: left out: {error}", file=sys.stderr)
                return []
        company = stack.enter_context(busy(sorted(os.sched_getaffinity(0))))
        company.go_on()
        ordinary, fifo = chains
        sides: dict[str, Callable[[], list[int]]] = {
            _PEER: lambda: _batch(ordinary),
            "worker FIFO": lambda: _batch(fifo),
            "both FIFO": lambda: _batch_with_priority(fifo),
        }
        times: dict[str, list[int]] = {name: [] for name in sides}
        for _ in range(-(-samples // _BATCH)):
            for name, side in sides.items():
                times[name] += side()
    return [_row(name, found, times[_PEER]) for name, found in times.items() if name != _PEER]


def _row(name: str, ours: list[int], peer: list[int]) -> Row:
    mine, other = quantile(ours, _SHARE), quantile(peer, _SHARE)
    low, median, high = statistics.quantiles(ours, n=4)
    note = f"p99.9 of {len(ours)} runs of {_LAUNCHES} launches, a busy process on every core; medians " \
           f"{median / 1000:.0f} µs and {statistics.median(peer) / 1000:.0f} µs"  # fmt: skip
    return Row(f"stressed p99.9, {name}", mine, other, "ns", _PEER, other / mine, (high - low) / median, note=note)


def _batch(chain: Chain) -> list[int]:
    chain.time()
    return [chain.time() for _ in range(_BATCH)]


def _batch_with_priority(chain: Chain) -> list[int]:
    with _caller_priority():
        return _batch(chain)


@contextmanager
def _caller_priority() -> Iterator[None]:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIFO_PRIORITY))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
