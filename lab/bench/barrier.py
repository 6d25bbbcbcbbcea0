"""Workers beside a process that takes one core for itself: what a launch over all workers then costs.

Launches over two cores on two workers; the company is one busy process on one of their cores. Quiet and disturbed
samples alternate. With equal shares the company gets its half of that core: what is left is one and a half cores,
1.33 times the quiet time at best, and a worker that is interrupted in a kernel holds up its launch until it goes on;
what one worker alone would take is the worst. The service has fifty times the weight of others (`CPUWeight=` of its
unit); niceness 17 gives the company a forty-fifth. No core is idle then, so that the scheduler may leave both workers
on one, unless each has its own (`device.pin_cores`). With a real-time priority nothing is taken away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hal.accelerator import DeviceOptions, open_accelerator
from hal.error import HalCode, HalError
from lab.bench import synthetic
from lab.bench.busy import Busy, busy
from lab.bench.chain import Chain, bind
from lab.bench.row import Row, make_row

REACH = 1 / 1.3
FIFO_PRIORITY = 10
_POLICIES = (
    # Name, priority of the workers, whether each has a core, niceness of the company, what is asked for.
    ("equal shares", 0, False, 0, 0.0),
    ("the unit's weight", 0, False, 17, 0.0),
    ("the unit's weight, a core each", 0, True, 17, REACH),
    (f"FIFO {FIFO_PRIORITY}", FIFO_PRIORITY, False, 0, REACH),
)
_LAUNCHES, _ROUNDS, _WORKERS = 100, 15_000, 2
_SAMPLES_A_TURN = 25
_PEER = "itself without that process"


def run(turns: int = 8) -> list[Row]:
    """A row for each policy that this process may give its workers. Empty where there are fewer cores than workers."""
    cores = sorted(os.sched_getaffinity(0))[-_WORKERS:]
    if len(cores) < _WORKERS:
        print(f"barrier: left out: {len(cores)} core, {_WORKERS} workers", file=sys.stderr)
        return []
    module = synthetic.module(_LAUNCHES, threads=_WORKERS, cores=_WORKERS, rounds=_ROUNDS)
    rows = []
    for policy, priority, pinned, niceness, reach in _POLICIES:
        with busy(cores[-1:], niceness) as company:
            options = DeviceOptions(fifo_priority=priority, pin_cores=tuple(cores) if pinned else ())
            accelerator = open_accelerator("cpu", options)
            try:
                quiet, disturbed = _alternate(bind(accelerator, module), company, turns)
            except HalError as error:
                if error.code is not HalCode.NOT_PERMITTED:
                    raise
                print(f"barrier, {policy}: left out: {error}", file=sys.stderr)
                continue
            finally:
                accelerator.close()
            note = f"{_LAUNCHES} launches over {_WORKERS} workers; one busy process on one of {len(cores)} cores"
            name = f"busy neighbour, {policy}"
            rows.append(make_row(name, disturbed, quiet, _PEER, reach=reach, note=note))
    return rows


def _alternate(chain: Chain, company: Busy, turns: int) -> tuple[Sequence[int], Sequence[int]]:
    """Times of the chain, quiet and disturbed, in turn."""
    quiet: list[int] = []
    disturbed: list[int] = []
    for _ in range(turns):
        company.stop()
        chain.time()
        quiet += (chain.time() for _ in range(_SAMPLES_A_TURN))
        company.go_on()
        chain.time()
        disturbed += (chain.time() for _ in range(_SAMPLES_A_TURN))
    company.stop()
    return quiet, disturbed
