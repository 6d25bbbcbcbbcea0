"""Being several cameras of a daemon at once: the frames of a log, set by set, and what comes of them as another log.

A set is what belongs together in time (`lab.replay.pictures.sets_of`); its frames start as far apart as they did. In
lock-step the next set waits until this one is settled. Whether a frame finds its partners is the daemon's decision
alone: one that finds none stays held for a while, and how it ends is logged when it does.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Callable, Iterable

from abi import messages
from abi.flat import RESULT, SUBMIT, ReleaseStatus
from abi.messages import OpenStream
from abi.packet import HEADER_BYTES
from abi.tap import TAP_END, TapEnd
from lab.json_text import json_text
from lab.replay.drive import outputs_bytes, pace
from lab.replay.log import LogWriter
from lab.replay.played import FrameSet
from lab.replay.rig import Rig, status_of

__all__ = ["record_sets"]

PATIENCE_S = 0.05
"""For frames of a set that is not whole, or of which one did not run: the others may wait for partners for long."""
END_S = 0.3
"""For what is still held when all is given."""
HELD = "held"
"""What became of frames that still waited when the drive ended."""


def record_sets(
    rig: Rig, sets: Iterable[FrameSet], log: LogWriter, model: str, *, rate_hz: float | None = None,
    on_set: Callable[[int], None] = lambda done: None,
) -> Counter[str]:  # fmt: skip
    """Give every set to the daemon, at `rate_hz` sets or as fast as they settle; returns how frames ended, by status.

    Sequence numbers are those of the sets, from 1 on. Raises TimeoutError, ConnectionLost, Refused, LogRefused.
    """
    recording = _Recording(rig, log, model)
    start_s = time.monotonic()
    for number, frames in enumerate(sets, start=1):
        if rate_hz is not None:
            pace(start_s, number - 1, rate_hz)
        recording.play(frames, number)
        on_set(number)
    return recording.end()


class _Recording:
    """One drive: what is held, what ended how, and everything that was said, in the log."""

    def __init__(self, rig: Rig, log: LogWriter, model: str) -> None:
        self._rig, self._log, self._model = rig, log, model
        self._counts: Counter[str] = Counter()
        self._held: set[tuple[str, int]] = set()
        self._idle: set[int] = set()  # sets of which a frame did not run
        self._taken = len(rig.cameras)  # how many frames a run takes, as far as that is known
        self._last_ns = self._last_at_ns = 0  # of the last set's last frame: its start now, and as it was
        self._poll = select.poll()
        now_ns = time.monotonic_ns()
        for stream, camera in rig.cameras.items():
            opened = messages.encode(OpenStream(stream, camera.stream_format))[HEADER_BYTES:]
            log.write(f"/camera/{stream}/format", opened, now_ns)
            self._poll.register(camera.fileno(), select.POLLIN)
        layout = messages.encode(rig.consumers[model].subscribed, descriptors=1)[HEADER_BYTES:]
        log.write(f"/model/{model}/layout", layout, now_ns)

    def play(self, frames: FrameSet, number: int) -> None:
        """Gives one set and waits until it is settled, or has had its time."""
        self._submit(frames, number)
        whole = len(frames) >= self._taken
        end_s = time.monotonic() + (self._rig.timeout_s if whole else PATIENCE_S)
        while any(held == number for _, held in self._held):
            left_s = end_s - time.monotonic()
            if left_s <= 0 and whole:
                raise TimeoutError(f"set {number} was not released within {self._rig.timeout_s} s")
            if left_s <= 0:
                break
            self._poll.poll(left_s * 1000)
            self._take()
            if whole and number in self._idle:
                whole, end_s = False, time.monotonic() + PATIENCE_S
        self._take()

    def end(self) -> Counter[str]:
        """Waits a little for what is still held; what is then, ends with its camera."""
        end_s = time.monotonic() + END_S
        while self._held and (left_s := end_s - time.monotonic()) > 0:
            self._poll.poll(left_s * 1000)
            self._take()
        self._counts[HELD] += len(self._held)
        return +self._counts

    def _submit(self, frames: FrameSet, number: int) -> None:
        """Where frames of a set before wait for partners, this one comes no sooner behind it than it did: else the
        daemon might take for partners what never were.
        """
        at_ns = frames[-1][0]
        not_before_ns = self._last_ns + at_ns - self._last_at_ns if self._held else 0
        submits = self._rig.submit(frames, number, not_before_ns=not_before_ns)
        for submit, (_, frame) in zip(submits, frames, strict=True):
            stream, pixels = frame.stream, frame.pixels
            assert pixels is not None
            self._held.add((stream, number))
            self._last_ns = sof_ns = SUBMIT.unpack(submit).sof_ns
            self._log.write(f"/camera/{stream}/submit", submit, sof_ns)
            self._log.write_owned(f"/camera/{stream}/pixels", pixels, sof_ns)
            truth = {"sequence": number, "stream": stream, "logged_sequence": frame.submit.sequence}
            self._log.write("/note/truth", json_text(truth).encode(), sof_ns)
        self._last_at_ns = at_ns

    def _take(self) -> None:
        """Everything that has come. A result is sent before the slots of its frames come back: it is here by then."""
        for stream, camera in self._rig.cameras.items():
            for release in camera.releases():
                self._held.discard((stream, release.sequence))
                self._counts[status_of(release)] += 1
                if release.status != ReleaseStatus.RUN:
                    self._idle.add(release.sequence)
                end = TapEnd(*release[:6], time.monotonic_ns(), 0)
                self._log.write(f"/camera/{stream}/end", TAP_END.pack(end), end.ended_ns)
        self._take_results()

    def _take_results(self) -> None:
        while True:
            try:
                delivery = self._rig.consumers[self._model].recv()
            except TimeoutError:
                return
            now_ns, self._taken = time.monotonic_ns(), len(delivery.receipt.frames)
            self._log.write(f"/model/{self._model}/result", RESULT.pack(delivery.result), now_ns)
            self._log.write(f"/model/{self._model}/outputs", outputs_bytes(delivery), now_ns)
