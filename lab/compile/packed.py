"""Runs a bundle's own bytes on the HAL, as the vehicle does, without looking at signatures.

It is the last of the compiler's checks: what was written to the file is read back into sealed memory, admitted, loaded
and run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median

from abi.graph import decode
from hal.accelerator import Accelerator, Executable, Module, SealedSpan, open_accelerator
from hal.cpu_executable import CpuExecutable
from hal.fence import FenceStatus
from lab.sign.pack import open_checked

TIMED_RUNS = 11


class PackedModel:
    """A loaded bundle with its frame, aux and output buffers bound. Its state goes on from run to run."""

    def __init__(self, accelerator: Accelerator, executable: Executable) -> None:
        self.accelerator, self.executable = accelerator, executable
        self.bindings = executable.bindings(0)
        graph = executable.graph
        self.frames = []
        for index, frame in enumerate(graph.entrypoints[0].frames):
            size = graph.buffers[graph.frames[frame].buffer].size_bytes
            self.frames.append(accelerator.allocate(f"frame {index}", size))
            self.bindings.bind_frame(index, self.frames[-1])
        for index, aux in enumerate(graph.entrypoints[0].aux):
            size = graph.buffers[graph.aux[aux].buffer].size_bytes
            self.frames.append(accelerator.allocate(f"aux {index}", size))
            self.bindings.bind_aux(index, self.frames[-1])
        self.outputs = {}
        for index, (number, size) in enumerate(
            zip(self.bindings.output_buffers, self.bindings.output_bytes(), strict=True)
        ):
            self.outputs[number] = accelerator.allocate(f"output {index}", size)
            self.bindings.bind_output(index, self.outputs[number])

    def run(self, frames: Sequence[bytes]) -> list[bytes]:
        """The bytes of each named output for the bytes of frames and then aux inputs, in the graph's order."""
        for buffer, frame in zip(self.frames, frames, strict=True):
            buffer.view[:] = frame
        fence = self.accelerator.submit(self.executable, self.bindings)
        budget_ns = self.executable.graph.entrypoints[0].budget_ns
        status = fence.wait(time.monotonic_ns() + 10 * budget_ns)
        if status is not FenceStatus.SIGNALED:
            raise RuntimeError(f"the packed bundle's fence is {status.name}: {fence.error}")
        parts = []
        for output in self.executable.graph.outputs:
            view = output.view
            parts.append(bytes(self.outputs[output.buffer].view[view.offset : view.offset + view.size_bytes]))
        return parts

    def launch_spans_ns(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each launch from the run's start, medians of TIMED_RUNS; empty where there are no times."""
        if not isinstance(self.executable, CpuExecutable):
            return ()
        ends = self.executable.trace()
        runs = []
        for _ in range(TIMED_RUNS):
            fence = self.accelerator.submit(self.executable, self.bindings)
            fence.wait(time.monotonic_ns() + 10 * self.executable.graph.entrypoints[0].budget_ns)
            marks = [fence.started_ns, *ends[: len(self.executable.graph.launches)]]
            runs.append([end - start for start, end in pairwise(marks)])
        durations = [int(median(one)) for one in zip(*runs, strict=True)]
        marks = [0, *accumulate(durations)]
        return tuple(pairwise(marks))

    def states(self) -> list[bytes]:
        """The bytes of every state, in the graph's order."""
        return [bytes(self.executable.state(one.name)) for one in self.executable.graph.states]


@contextmanager
def open_packed(path: Path) -> Iterator[PackedModel]:
    """The bundle at `path`, loaded on its driver; unloaded on leaving. Raises Refused, AdmissionRefused or HalError."""
    with open_checked(path) as (sealed, _, stated):
        spans = {blob.name: span for blob, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}
        weights = spans["weights"]
        module = Module(
            graph=decode(sealed.view(spans["graph"])),
            code=sealed.view(spans["code"]),
            weights=sealed.view(weights),
            weights_span=SealedSpan(sealed.memfd, weights.offset_bytes, weights.size_bytes),
        )
        accelerator = open_accelerator(module.graph.driver)
        try:
            executable = accelerator.load(module)
            yield PackedModel(accelerator, executable)
        finally:
            accelerator.close()
