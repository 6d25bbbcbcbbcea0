"""CPU kernels: whole models beside onnxruntime, with the same threads on the same inputs in one run.

Ours is the compiled bundle on the HAL from submit to fence, fed with RGB24 frames of the model's own size, so it also
unpacks and normalises bytes; the peer is `InferenceSession.run` on the ready tensor. They take turns in blocks, with a
pause after the peer's, whose threads spin on for a while. Two networks are written here (`lab.bench.networks`); the
public models lie in `models` (see `fenced-lab bench --models`) and are left out where they are absent.

`heaviest` says for the costliest launches what they reach of this machine's measured peaks.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hal.fence import FenceStatus
from lab.bench.peaks import Peaks, measure
from lab.bench.row import Row, make_row, quantile
from lab.bench.served import SPEC
from lab.compile.compiler import compile_spec
from lab.compile.packed import PackedModel, open_packed

THREADS = 2
BLOCKS, RUNS = 12, 10
HEAVIEST, SPANS = 3, 5
PEER = "onnxruntime, same threads"
PAUSE_S = 0.05
"""onnxruntime's idle threads spin for some milliseconds before they sleep."""
_SPEC = """
[model]
name = "{name}"
version = "1.0.0"
source = "{source}"
release = 1
[target]
driver = "cpu"
arch = "x86_64"
cpu = "x86_64_v3"
threads = {threads}
[[input]]
name = "{input}"
stream = "road"
format = "RGB24"
width = {width}
height = {height}
range = "full"
matrix = "identity"
primaries = "bt709"
transfer = "srgb"
chroma_site = "notSubsampled"
resize = [{width}, {height}]
mean = [127, 127, 127]
std = [128, 128, 128]
[check]
onnxruntime_tolerance = 1e-3
steps = 2
"""
_OUTPUT = '[[output]]\ntensor = "{0}"\nname = "{0}"\nunit = "1"\nnan = "refuse"\n'

WRITTEN_REACH = 1 / 1.25  # what is asked of any model that is no public one


@dataclass(frozen=True)
class Subject:
    """A model file and the parts of its contract that it does not state. Sizes in pixels."""

    name: str
    path: Path
    input: str
    width: int
    height: int
    outputs: tuple[str, ...]
    reach: float = 1.0  # of onnxruntime's time over ours

    def spec(self, threads: int = THREADS) -> str:
        """The text of a spec that feeds it RGB24 frames of its own size."""
        text = _SPEC.format(
            name=self.name.lower(), source=self.path.resolve(), threads=threads, input=self.input, width=self.width,
            height=self.height,
        )  # fmt: skip
        return text + "".join(_OUTPUT.format(one) for one in self.outputs)


def subjects(models: Path | None) -> list[Subject]:
    """The lane example, and those of the public models that lie in the folder `models`; of others, that they do not."""
    found = [Subject("lane", SPEC.with_name("lane.onnx"), "image", 192, 64, ("lane",))]
    if models is not None:
        found += [
            Subject("FastestDet", models / "FastestDet.onnx", "input.1", 352, 352, ("758",)),
            Subject("RFB320", models / "RFB320.onnx", "input", 320, 240, ("scores", "boxes")),
        ]
    for absent in (one for one in found if not one.path.is_file()):
        print(f"{absent.name}: left out: no {absent.path}", file=sys.stderr)
    return [one for one in found if one.path.is_file()]


def written(folder: Path) -> list[Subject]:
    """The networks of `lab.bench.networks`, saved in `folder`."""
    from lab.bench.networks import INPUT, NETWORKS, OUTPUT  # noqa: PLC0415 (imports onnx)

    found = []
    for name, (save, width, height) in NETWORKS.items():
        path = folder / f"{name}.onnx"
        save(path)
        found.append(Subject(name, path, INPUT, width, height, (OUTPUT,), WRITTEN_REACH))
    return found


def run(folder: Path, models: Path | None = None) -> list[Row]:
    """A row for each subject: ratio of the 10th percentiles, whose spread the machine's other work touches least."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, peaks = [], measure(THREADS)
    for subject in (*subjects(models), *written(folder)):
        with opened(subject, folder) as packed:
            ours, theirs = alternate(packed, session(subject))
            worst = "; ".join(one.said(peaks) for one in heaviest(packed, HEAVIEST))
        fast = quantile(theirs, 0.1) / quantile(ours, 0.1)
        note = f"p10 {fast:.2f}×; ours also unpacks and normalises bytes. Costliest launches: {worst}"
        rows.append(make_row(f"{subject.name}, {THREADS} threads", ours, theirs, PEER, reach=subject.reach, note=note))
    return rows


@contextmanager
def opened(subject: Subject, folder: Path) -> Iterator[PackedModel]:
    """The subject compiled into `folder` and loaded."""
    spec, bundle = folder / f"{subject.name}.toml", folder / f"{subject.name}.fenced"
    spec.write_text(subject.spec())
    compile_spec(spec, bundle)
    with open_packed(bundle) as packed:
        yield packed


def session(subject: Subject) -> tuple[Any, dict[str, Any]]:
    """onnxruntime's session with THREADS threads, and an input for it."""
    import onnxruntime  # noqa: PLC0415 (heavy)

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, THREADS
    made = onnxruntime.InferenceSession(str(subject.path), options, providers=["CPUExecutionProvider"])
    picture = np.random.default_rng(1).random((1, 3, subject.height, subject.width), np.float32)
    return made, {subject.input: picture}


def alternate(packed: PackedModel, peer: tuple[Any, dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Nanoseconds of each run, ours and the peer's, in BLOCKS turns of RUNS after one turn of warming up."""
    made, feed = peer
    size = packed.executable.graph.buffers[packed.executable.graph.frames[0].buffer].size_bytes
    packed.run([np.random.default_rng(1).integers(0, 256, size, np.uint8).tobytes()])
    ours: list[int] = []
    theirs: list[int] = []
    for _ in range(BLOCKS + 1):
        for _ in range(RUNS):
            began_ns = time.perf_counter_ns()
            status = packed.again().status
            ours.append(time.perf_counter_ns() - began_ns)
            if status is not FenceStatus.SIGNALED:
                raise RuntimeError(f"a run ended as {status.name}")
        for _ in range(RUNS):
            began_ns = time.perf_counter_ns()
            made.run(None, feed)
            theirs.append(time.perf_counter_ns() - began_ns)
        time.sleep(PAUSE_S)
    return ours[RUNS:], theirs[RUNS:]


@dataclass(frozen=True)
class LaunchCost:
    """One launch: its kernel, its time, and what it reached. `bytes`: what its arguments span, once each."""

    number: int
    kernel: str
    ns: int
    flops: int
    bytes: int

    @property
    def gflops(self) -> float:
        """Arithmetic operations a nanosecond."""
        return self.flops / max(1, self.ns)

    @property
    def gbytes(self) -> float:
        """Bytes a nanosecond, counting each argument once."""
        return self.bytes / max(1, self.ns)

    def said(self, peaks: Peaks) -> str:
        """The launch in words, beside the machine's peaks."""
        return (
            f"{self.number} {self.kernel} {self.ns / 1000:.0f} µs, {self.gflops:.1f} of {peaks.gflops:.0f} GFLOP/s, "
            f"{self.gbytes:.1f} of {peaks.gbytes:.0f} GB/s"
        )


def heaviest(packed: PackedModel, count: int) -> Sequence[LaunchCost]:
    """The `count` costliest launches, costliest first, each by the best of SPANS looks.

    Workers that the scheduler puts on one core for a while show half of what they can do.
    """
    graph = packed.executable.graph
    looks = [[end - start for start, end in packed.launch_spans_ns()] for _ in range(SPANS)]
    costs = []
    for number, (launch, *taken_ns) in enumerate(zip(graph.launches, *looks, strict=True)):
        program = graph.programs[launch.program]
        spanned = sum(one.size_bytes for one in launch.arguments)
        costs.append(LaunchCost(number, program.name, min(taken_ns), program.flops, spanned))
    return sorted(costs, key=lambda one: -one.ns)[:count]
