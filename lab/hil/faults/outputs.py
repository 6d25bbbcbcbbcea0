"""Outputs of another frame, of no frame, or of too many: what is published is right, or nothing is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lab.hil.bench import PROBES, Bench, Need
from lab.hil.clients import ended, picture, run_one, submit
from lab.hil.faults.fault import Fault
from lab.hil.verdict import WrongAnswer, expect

__all__ = ["FAULTS"]


def two_inputs(bench: Bench) -> str:
    """Two frames through a model that was loaded in a fresh process."""
    model, outputs = PROBES["tiny"], []
    with bench.camera() as camera, bench.consumer() as consumer:
        for sequence in (1, 2):
            outputs.append(run_one(camera, consumer, sequence, picture(sequence)).outputs["values"])
            if not np.array_equal(outputs[-1], model.values(picture(sequence))):
                raise WrongAnswer(f"outputs of frame {sequence}", "those of its pixels", "others")
    if np.array_equal(outputs[0], outputs[1]):
        raise WrongAnswer("outputs of two pictures", "different", "the same")
    return "two pictures, two outputs, both right"


def recurrent(bench: Bench) -> str:
    """Twenty steps of a model that keeps the sum of all its frames, against numpy."""
    total: NDArray[np.float32] | None = None
    with bench.camera("total") as camera, bench.consumer("total") as consumer:
        for sequence in range(20):
            pixels = picture(sequence)
            found = run_one(camera, consumer, sequence, pixels).outputs["values"].astype(np.float32)
            total = found if total is None else total + pixels
            expect(f"equality of step {sequence} with numpy", bool(np.array_equal(found, total)), True)
    return "20 steps equal to numpy's sum"


def unwritten(bench: Bench) -> str:
    """A fence that signals while two output values were never written."""
    before = _canaries(bench)
    with bench.camera("lazy") as camera, bench.consumer("lazy") as consumer:
        run_one(camera, consumer, 1, picture(1))
        submit(camera, 2, picture(2, first=255))
        expect("frames lost", ended(camera)["lost"], 1)
        try:
            consumer.recv()
        except TimeoutError:
            expect("canaries that tripped", _canaries(bench) - before, 1)
            return "the canary tripped and nothing was published"
    raise WrongAnswer("results with unwritten bytes", "none", "one")


def _canaries(bench: Bench) -> int:
    return sum(one["runs"]["canary"] for one in bench.status()["models"])


FAULTS = (
    Fault("runtime/1", "loaded JIT returns the capture's output", "outputs differ, both right", Need.PROBES,
          two_inputs),
    Fault("runtime/2", "rolling buffer corrupts", "equal", Need.PROBES, recurrent),
    Fault("runtime/16", "signalled fence, output still zero", "canary trips", Need.PROBES, unwritten),
)  # fmt: skip
