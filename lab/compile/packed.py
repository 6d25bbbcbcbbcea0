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

from abi.graph import BufferKind, decode
from hal.accelerator import Accelerator, Executable, Module, SealedSpan, open_accelerator
from hal.bindings import Bindings
from hal.cpu_executable import CpuExecutable
from hal.fence import Fence, FenceStatus
from lab.sign.pack import open_checked

TIMED_RUNS = 11


class PackedModel:
    """A loaded bundle with its frame, aux and output buffers bound. Its state goes on from run to run."""

    def __init__(self, accelerator: Accelerator, executable: Executable) -> None:
        self.accelerator, self.executable = accelerator, executable
        graph = executable.graph
        bound = (BufferKind.FRAME, BufferKind.AUX, BufferKind.OUTPUT)
        self._buffers = {
            number: accelerator.allocate(f"{one.kind.name.lower()} {number}", one.size_bytes)
            for number, one in enumerate(graph.buffers)
            if one.kind in bound
        }
        self._bindings = [self._bind(number) for number in range(len(graph.entrypoints))]

    def _bind(self, number: int) -> Bindings:
        graph, bindings = self.executable.graph, self.executable.bindings(number)
        entry = graph.entrypoints[number]
        for position, frame in enumerate(entry.frames):
            bindings.bind_frame(position, self._buffers[graph.frames[frame].buffer])
        for position, aux in enumerate(entry.aux):
            bindings.bind_aux(position, self._buffers[graph.aux[aux].buffer])
        for position, buffer in enumerate(bindings.output_buffers):
            bindings.bind_output(position, self._buffers[buffer])
        return bindings

    def run(self, inputs: Sequence[bytes], entrypoint: int = 0) -> list[bytes]:
        """The bytes of each named output for the bytes of frames and then aux inputs, in the entrypoint's order."""
        graph = self.executable.graph
        entry = graph.entrypoints[entrypoint]
        taken = [graph.frames[one].buffer for one in entry.frames] + [graph.aux[one].buffer for one in entry.aux]
        for buffer, value in zip(taken, inputs, strict=True):
            self._buffers[buffer].view[:] = value
        fence = self._submit(entrypoint)
        if fence.status is not FenceStatus.SIGNALED:
            raise RuntimeError(f"the packed bundle's fence is {fence.status.name}: {fence.error}")
        parts = []
        for index in entry.outputs:
            output = graph.outputs[index]
            start = output.view.offset
            parts.append(bytes(self._buffers[output.buffer].view[start : start + output.view.size_bytes]))
        return parts

    def again(self, entrypoint: int = 0) -> Fence:
        """One more run on the inputs that lie there: its fence, ended."""
        return self._submit(entrypoint)

    def _submit(self, entrypoint: int) -> Fence:
        fence = self.accelerator.submit(self.executable, self._bindings[entrypoint])
        fence.wait(time.monotonic_ns() + 10 * self.executable.graph.entrypoints[entrypoint].budget_ns)
        return fence

    def launch_spans_ns(self) -> tuple[tuple[int, int], ...]:
        """Start and end of each launch from its run's start, medians of TIMED_RUNS; empty where there are no times."""
        if not isinstance(self.executable, CpuExecutable):
            return ()
        ends = self.executable.trace()
        spans: list[tuple[int, int]] = []
        for number, entry in enumerate(self.executable.graph.entrypoints):
            runs = []
            for _ in range(TIMED_RUNS):
                fence = self._submit(number)
                marks = [fence.started_ns, *ends[: entry.launch_count]]
                runs.append([end - start for start, end in pairwise(marks)])
            durations = [int(median(one)) for one in zip(*runs, strict=True)]
            spans += pairwise([0, *accumulate(durations)])
        return tuple(spans)

    def reset_state(self) -> None:
        """Every state as before the first run."""
        self.executable.reset_state()

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
