"""Bundles that are signed and hostile, or signed and dead, against the whole daemon: each is refused by name.

Whoever holds the keys can sign anything; the graph is still proved before it is mapped and tried before it serves
(cases/signing.md rows 24 to 28). The model that served before goes on serving.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abi.graph import Argument, Buffer, BufferKind, Graph
from client.errors import Refused
from tests.simulators import BundleSimulator
from tests.support.bundles import FRAME, OUT, OUT_BYTES, PIXELS, BundleMaker, Pixels, TinyModel
from tests.support.daemons import DaemonThread, picture, run_one

OLD = TinyModel("add", number=3)
NEW = TinyModel("add", version="2.0.0", release=2, number=50)
WRAPPING = (1 << 31, 1 << 31, 4)  # their product is 2^64


class Infinite(TinyModel):
    """Its golden vectors are true, and infinite."""

    def _is_suitable(self, frame: Pixels) -> bool:
        return 255 in frame


def first_launch(**changes: Any) -> Callable[[Graph], Graph]:
    return lambda graph: replace(graph, launches=(replace(graph.launches[0], **changes),))


def first_argument(argument: Argument) -> Callable[[Graph], Graph]:
    """The kernel's output goes to `argument` instead."""
    return lambda graph: first_launch(arguments=(argument, *graph.launches[0].arguments[1:]))(graph)


def into_weights(graph: Graph) -> Graph:
    buffers = (*graph.buffers, Buffer(BufferKind.WEIGHTS, OUT_BYTES, 0, 64))
    return first_argument(Argument(len(graph.buffers), 0, OUT_BYTES))(replace(graph, buffers=buffers))


def endless_dims(graph: Graph) -> Graph:
    output = graph.outputs[0]
    return replace(graph, outputs=(replace(output, view=replace(output.view, shape=WRAPPING)),))


def without_the_last_launch(graph: Graph) -> Graph:
    return replace(graph, launches=(), entrypoints=(replace(graph.entrypoints[0], launch_count=0),))


def with_weights(simulator: BundleSimulator) -> None:
    simulator.blobs["weights"] = bytes(OUT_BYTES)


HOSTILE: dict[str, tuple[TinyModel, dict[str, Any], str]] = {
    # row 25: out of bounds
    "an argument that leaves its buffer": (
        NEW, {"edit_graph": first_argument(Argument(OUT, 8, OUT_BYTES))}, "argument-range: launch 0",
    ),
    "an argument whose end wraps": (
        NEW, {"edit_graph": first_argument(Argument(OUT, (1 << 64) - 4, 8))}, "argument-range: launch 0",
    ),
    "a program that is not there": (NEW, {"edit_graph": first_launch(program=7)}, "index: launch 0"),
    "a buffer that is not there": (NEW, {"edit_graph": first_argument(Argument(99, 0, 4))}, "index: launch 0"),
    "dims whose product wraps": (NEW, {"edit_graph": endless_dims}, "size-mismatch: output 0"),
    # row 26: writes what is not its own. Code is no buffer, so that a graph cannot even name it
    "a kernel that writes the frame": (
        NEW, {"edit_graph": first_argument(Argument(FRAME, 0, PIXELS))}, "read-only: launch 0",
    ),
    "a kernel that writes the weights": (
        NEW, {"edit_graph": into_weights, "edit": with_weights}, "read-only: launch 0",
    ),
    # row 27: outputs that nothing writes
    "an output that is never written": (NEW, {"edit_graph": without_the_last_launch}, "index: entrypoint 0"),
    "an output that is partly written": (
        NEW, {"edit_graph": first_argument(Argument(OUT, 0, OUT_BYTES - 4))}, "output-not-covered: entrypoint 0",
    ),
    # row 28: signed but dead
    "outputs that are infinite": (
        Infinite("inf", version="2.0.0", release=2), {}, "self-test-nan: output values",
    ),
    "outputs that know nothing of the picture": (
        TinyModel("blind", version="2.0.0", release=2), {}, "self-test-constant: golden vectors",
    ),
}  # fmt: skip


def refused_while_the_old_one_serves(tmp_path: Path, maker: BundleMaker, bad: Path) -> str:
    """Tries to activate `bad`; returns the refusal's first words."""
    with (
        DaemonThread(tmp_path, [maker.write(OLD)], maker) as daemon,
        daemon.camera() as camera,
        daemon.consumer() as consumer,
        daemon.control() as control,
    ):
        with pytest.raises(Refused) as refused:
            control.activate(bad)
        outputs = run_one(camera, consumer, 1, picture(1)).outputs
        assert np.array_equal(outputs["values"], OLD.values(picture(1)))
    return refused.value.what


@pytest.mark.parametrize("case", HOSTILE)
def test_a_signed_but_hostile_or_dead_bundle_is_refused_by_name(tmp_path: Path, maker: BundleMaker, case: str) -> None:
    model, how, words = HOSTILE[case]
    bad = maker.write(model, "bad.fenced", **how)
    what = refused_while_the_old_one_serves(tmp_path, maker, bad)
    assert what.startswith(words), what


class _Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("blob", ["graph", "code", "goldens"])
@pytest.mark.parametrize("protocol", range(6))
def test_a_smuggled_pickle_is_refused_and_never_unpickled(
    tmp_path: Path, maker: BundleMaker, blob: str, protocol: int
) -> None:
    mark = tmp_path / "unpickled"
    data = pickle.dumps(_Bomb(mark), protocol)
    pickle.loads(data)
    assert mark.exists()  # it would have
    mark.unlink()

    def smuggle(simulator: BundleSimulator) -> None:
        simulator.blobs[blob] = data

    what = refused_while_the_old_one_serves(tmp_path, maker, maker.write(NEW, "bad.fenced", edit=smuggle))
    assert not mark.exists()
    assert what.split(":")[0] not in ("fault", "")
