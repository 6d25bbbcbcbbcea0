"""In-fences that fail: the frame is dropped with its reason and never runs."""

from __future__ import annotations

import os

from lab.hil.bench import Bench, Need
from lab.hil.clients import ended, submit
from lab.hil.faults.fault import Fault
from lab.hil.verdict import WrongAnswer, expect

__all__ = ["FAULTS"]


def fences(bench: Bench) -> str:
    """An in-fence that ends in an error (a pipe whose writer has gone), and one that never signals."""
    before = bench.status()["streams"].get(bench.stream, {}).get("reasons", {})
    with bench.open_first() as camera:
        for sequence, case in enumerate(("error", "never"), 1):
            reader, writer = os.pipe()
            try:
                if case == "error":  # before it is sent: later it might be after the fence's time
                    os.close(writer)
                submit(camera, sequence, bench.noise(sequence), in_fence=reader)
                ledger = ended(camera)
            finally:
                os.close(reader)
                if case == "never":
                    os.close(writer)
            expect("frames lost and run", (ledger["lost"], ledger["run"]), (sequence, 0))
    after = bench.status()["streams"][bench.stream]["reasons"]
    for reason in ("fence-error", "fence-timeout"):
        if after.get(reason, 0) != before.get(reason, 0) + 1:
            raise WrongAnswer("reasons of the stream", f"one more {reason}", f"{before} before, {after} after")
    return "dropped as fence-error and as fence-timeout; neither ran"


FAULTS = (
    Fault("frames/14", "failed sync wait, frame sent anyway",
          "frame dropped as fence-error or fence-timeout; never run", Need.SERVING, fences),
)  # fmt: skip
