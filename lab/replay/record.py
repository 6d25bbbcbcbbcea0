"""Recording: drive a daemon with frames from a source and keep all that crossed in a log.

The log is written by its own thread; a frame costs the driver one copy of its pixels. Nothing is added to the daemon's
work: the recorder is an ordinary camera and an ordinary consumer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from abi import messages
from abi.flat import RESULT
from abi.messages import OpenStream
from abi.packet import HEADER_BYTES
from abi.tap import TAP_END, TapEnd
from lab.json_text import json_text
from lab.replay.drive import Drive, Outcome, outputs_bytes, pace
from lab.replay.log import LogWriter
from lab.replay.source import FrameSource

OnFrame = Callable[[int, Mapping[str, float], Outcome], None]


def record(drive: Drive, source: FrameSource, log: LogWriter, model: str, frames: int, *,
           rate_hz: float | None = None, on_frame: OnFrame | None = None) -> Counter[str]:  # fmt: skip
    """Drive `frames` frames, at `rate_hz` or as fast as they settle, into `log`; returns how many had which status.

    `on_frame(index, truth, outcome)` is called after each. Sequence numbers are the source's indices from 1 on.
    """
    camera, served = f"/camera/{source.stream}", f"/model/{model}"
    opened = messages.encode(OpenStream(source.stream, source.format))[HEADER_BYTES:]
    layout = messages.encode(drive.consumer.subscribed, descriptors=1)[HEADER_BYTES:]
    log.write(f"{camera}/format", opened, time.monotonic_ns())
    log.write(f"{served}/layout", layout, time.monotonic_ns())
    counts: Counter[str] = Counter()
    start_s = time.monotonic()
    for index in range(frames):
        if rate_hz is not None:
            pace(start_s, index, rate_hz)
        truth: Mapping[str, float] = {}

        def fill(pixels: object, index: int = index) -> None:
            nonlocal truth
            truth = source.fill(pixels, index)  # type: ignore[arg-type]

        outcome = drive.step(fill, sequence=index + 1)
        log.write(f"{camera}/submit", outcome.submit, outcome.sof_ns)
        log.write(f"{camera}/pixels", outcome.pixels.data, outcome.sof_ns)
        log.write("/note/truth", json_text({"sequence": index + 1, **truth}).encode(), outcome.sof_ns)
        end = TapEnd(*outcome.release[:6], time.monotonic_ns(), 0)
        log.write(f"{camera}/end", TAP_END.pack(end), end.ended_ns)
        if outcome.delivery is not None:
            now_ns = time.monotonic_ns()
            log.write(f"{served}/result", RESULT.pack(outcome.delivery.result), now_ns)
            log.write(f"{served}/outputs", outputs_bytes(outcome.delivery), now_ns)
        counts[outcome.status] += 1
        if on_frame is not None:
            on_frame(index, truth, outcome)
    return counts


def counted(counts: Mapping[str, int]) -> str:
    """For a person: `3 run, 1 late`."""
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
