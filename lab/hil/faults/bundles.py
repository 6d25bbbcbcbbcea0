"""Bundles that are signed and wrong: each is refused by name, and what served before goes on serving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from abi.graph import HAL_VERSION, Graph
from client.errors import Refused
from lab.hil.bench import PROBES, Bench, Need
from lab.hil.clients import picture, run_one
from lab.hil.faults.fault import Fault
from lab.hil.probe import FRAME, TinyModel
from lab.hil.probe_lab import Blobs, ProbeLab
from lab.hil.verdict import WrongAnswer

__all__ = ["FAULTS"]

NEXT = TinyModel("add", name="tiny", version="2.0.0", release=2, number=50)
NEXT_PAIR = replace(PROBES["pair"], version="2.0.0", release=2)
Write = Callable[[ProbeLab], Path]


def refused(bench: Bench, write: Write, codes: tuple[str, ...]) -> str:
    """Tries to activate what `write` makes; the daemon must refuse it with one of `codes` and serve on."""
    bad = write(bench.signing)
    try:
        with bench.control() as control:
            control.activate(bad)
    except Refused as refusal:
        code = refusal.what.partition(":")[0]
        if code not in codes:
            raise WrongAnswer("code of the refusal", " or ".join(codes), str(refusal)) from refusal
        _require_serving(bench)
        return str(refusal)
    raise WrongAnswer(f"activation of {bad.name}", "a refusal", "activated")


def _require_serving(bench: Bench) -> None:
    pixels = picture(9)
    with bench.camera() as camera, bench.consumer() as consumer:
        outputs = run_one(camera, consumer, 1, pixels).outputs
    if not np.array_equal(outputs["values"], PROBES["tiny"].values(pixels)):
        raise WrongAnswer("outputs after the refusal", "those of the model that served before", "others")


def wrong_goldens(bench: Bench) -> str:
    """The device computes something else than the lab did: one golden value is off by a hundredth."""

    def shift(blobs: Blobs) -> None:
        values = np.frombuffer(blobs["goldens"], np.float32).copy()
        values[5] += 0.01
        blobs["goldens"] = values.tobytes()

    return refused(bench, lambda lab: lab.write(NEXT, "goldens.fenced", edit_blobs=shift), ("self-test-golden",))


def another_interface(bench: Bench) -> str:
    """A bundle for another HAL interface whose graph is noise: it must not come to parsing it."""

    def restate(document: dict[str, Any]) -> None:
        document["predicate"]["halVersion"] = HAL_VERSION + 1

    def write(lab: ProbeLab) -> Path:
        return lab.write(NEXT, "interface.fenced", edit_statement=restate, edit_blobs=_noise_for_graph)

    return refused(bench, write, ("target-mismatch",))


def _noise_for_graph(blobs: Blobs) -> None:
    blobs["graph"] = bytes(range(256)) * 16


def missing_fields(bench: Bench) -> str:
    """A statement without its HAL version, then a graph without its entrypoint."""

    def restate(document: dict[str, Any]) -> None:
        del document["predicate"]["halVersion"]

    def headless(graph: Graph) -> Graph:
        return replace(graph, entrypoints=())

    words = [
        refused(bench, lambda lab: lab.write(NEXT, "statement.fenced", edit_statement=restate), ("bad-statement",)),
        refused(bench, lambda lab: lab.write(NEXT, "graph.fenced", edit_graph=headless), ("limit",)),
    ]
    return "; ".join(words)


def another_device(bench: Bench) -> str:
    """A graph whose launches are for another device than the bundle's target."""

    def elsewhere(graph: Graph) -> Graph:
        return replace(graph, driver="opencl")

    return refused(bench, lambda lab: lab.write(NEXT, "device.fenced", edit_graph=elsewhere), ("driver",))


def aliased_inputs(bench: Bench) -> str:
    """Two inputs of one entrypoint over one buffer."""

    def alias(graph: Graph) -> Graph:
        return replace(graph, frames=(graph.frames[0], replace(graph.frames[1], buffer=FRAME)))

    return refused(bench, lambda lab: lab.write(NEXT_PAIR, "alias.fenced", edit_graph=alias), ("buffer-role", "alias"))


FAULTS = (
    Fault("runtime/6", "fp16 wrong on one device, no error", "self-test refusal", Need.PROBES, wrong_goldens),
    Fault("runtime/10", "wrong runtime version", "refused before anything is parsed", Need.PROBES, another_interface),
    Fault("runtime/11", "model artifact misses a field", "refused; old model keeps serving", Need.PROBES,
          missing_fields),
    Fault("runtime/15", "model on CPU though GPU asked for", "admission refusal", Need.PROBES, another_device),
    Fault("runtime/22", "two inputs alias one buffer", "refused", Need.PROBES, aliased_inputs),
)  # fmt: skip
