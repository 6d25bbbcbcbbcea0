"""One daemon as a replay drives it: a camera for each logged stream, a consumer for each model, and its state.

`play` gives one set of frames and waits until it has settled. Frames start when they are submitted, a set's frames as
far apart as they were; sequence numbers are the rig's own, rising however the log's go.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abi.colour import ClockId
from abi.flat import Release, ReleaseStatus
from abi.messages import DeliveryPolicy, OpenStream, SetAux
from abi.packet import HEADER_BYTES, RefusalCode
from abi.snapshot import decode
from client.camera import Camera, Frame
from client.consumer import Consumer, Delivery
from client.control import Control
from client.errors import Refused
from lab.replay.compare import values_of
from lab.replay.played import FrameSet, LoggedFrame, LoggedRun
from lab.replay.refusal import LogRefusal, LogRefused

SLOTS = 4
QUEUE = 1
"""In lock-step no more than one result waits; a daemon's ring may be as short as two."""
NAME = "replay"
LATE, LATE_TRIES = "late", 40


@dataclass(frozen=True)
class Played:
    """What became of one run: its result, or how its frames ended (`late`, `stale`, a refusal's code …)."""

    delivery: Delivery | None
    status: str


class Rig:
    """Sessions against the daemon behind `sockets`, for these streams and models. Use as a context manager.

    `rename`: what a logged model is called there, where that differs; `queue`: results that may wait in the daemon.
    """

    def __init__(self, sockets: Path, opened: Mapping[str, OpenStream], models: list[str], *,
                 rename: Mapping[str, str] | None = None, slots: int = SLOTS, queue: int = QUEUE,
                 timeout_s: float = 30.0) -> None:  # fmt: skip
        """Raises Refused where the daemon does not take a stream or has no such model, OSError, ConnectionLost."""
        self.timeout_s = timeout_s
        self._names = {model: (rename or {}).get(model, model) for model in models}
        self._last_sof_ns: dict[str, int] = {}
        self._sequence = 0
        self._aux_ns: dict[str, int] = {}
        self._fences: dict[str, int] = {}
        self.given_again = 0
        """Sets of frames that were given again because they had been late."""
        self.stepped: set[str] = set()
        """Models that ran in between: an entrypoint kept state in step with frames that were late."""
        self.consumers: dict[str, Consumer] = {}
        self.cameras: dict[str, Camera] = {}
        self._control_path: Path | None = sockets / "control.sock"
        with ExitStack() as stack:
            for model, name in self._names.items():
                path, policy = sockets / "consumer.sock", DeliveryPolicy.EVERY
                consumer = Consumer.subscribe(path, name, policy, queue, name=NAME, timeout_s=timeout_s)
                self.consumers[model] = stack.enter_context(consumer)
            for stream, one in opened.items():
                played = replace(one.format, clock=ClockId.MONOTONIC)
                path = sockets / "camera.sock"
                camera = Camera.open(path, stream, played, slots, name=NAME, timeout_s=timeout_s)
                self.cameras[stream] = stack.enter_context(camera)
            try:
                with self._control("any model"):
                    pass
            except Refused:  # who may not control it plays without touching state
                self._control_path = None
            self._stack = stack.pop_all()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def digest(self, model: str) -> str:
        """SHA-256 (hex) of the signed statement of what serves as this model."""
        return self.consumers[model].model_digest.hex()

    def status(self) -> dict[str, Any] | None:
        """The daemon's whole state; None where this user may not ask."""
        if self._control_path is None:
            return None
        with self._control("any model") as control:
            return control.status()

    def has_state(self, model: str) -> bool | None:
        """Whether a model keeps recurrent state; None where this user may not ask."""
        if self._control_path is None:
            return None
        with self._control(model) as control:
            header, _ = decode(control.snapshot_state(self._names[model]))
        return bool(header.states)

    def reset_state(self, model: str) -> None:
        """To its initial value. Raises LogRefused where this user may not."""
        with self._control(model) as control:
            control.reset_state(self._names[model])

    def restore_state(self, model: str, snapshot: bytes) -> None:
        """To a snapshot's. Raises LogRefused where this user may not, Refused where it does not fit."""
        with self._control(model) as control:
            control.restore_state(snapshot, self._names[model])

    def _control(self, model: str) -> Control:
        """A session for what is to be said now: the daemon closes one that is silent for long."""
        if self._control_path is None:
            raise LogRefused(
                LogRefusal.STATE, f"the state of {model} must be set", expected="a user that may control the daemon",
                found="one that may not", todo="list it under [control], or replay a model without state",
            )  # fmt: skip
        return Control(self._control_path, name=NAME, timeout_s=self.timeout_s)

    def set_aux(self, value: SetAux, age_ns: int) -> None:
        """Set an aux input as old as it was for the run that follows; never older than what was set before."""
        now_ns = time.monotonic_ns()
        time_ns = min(now_ns, max(now_ns - max(0, age_ns), self._aux_ns.get(value.name, 0)))
        self._aux_ns[value.name] = time_ns
        next(iter(self.cameras.values())).set_aux(value.name, time_ns, value.value)

    def play(self, run: LoggedRun) -> Played:
        """Give the run's frames to the daemon and wait for its result. Every frame must have its pixels.

        A set that this machine was too slow for (`late`) has not run, and is given again: the daemon forgets its
        slowest runs after some that did not run for them. Raises TimeoutError, ConnectionLost, Refused.
        """
        played = self._play(run)
        for _ in range(LATE_TRIES):
            if played.status != LATE:
                break
            self.given_again += 1
            played = self._play(run)
        fence = None if played.delivery is None else played.delivery.receipt.fence_value
        if fence is not None:
            if self._fences.get(run.model, fence - 1) != fence - 1:
                self.stepped.add(run.model)
            self._fences[run.model] = fence
        return played

    def _play(self, run: LoggedRun) -> Played:
        frames = [frame for frame in run.frames if frame is not None]
        sof_ns = [one.sof_monotonic_ns for one in run.receipt.frames]
        for value in run.aux:
            self.set_aux(value, run.receipt.submitted_ns - value.time_ns)
        self._sequence += 1
        self.submit(list(zip(sof_ns, frames, strict=True)), self._sequence)
        releases = [self._settled(frame.stream, self._sequence) for frame in frames]
        if any(release.status != ReleaseStatus.RUN for release in releases):
            return Played(None, next(status_of(one) for one in releases if one.status != ReleaseStatus.RUN))
        return Played(self._result(run.model, self._sequence), "run")

    def submit(self, frames: FrameSet, sequence: int, *, age_ns: int = 0, not_before_ns: int = 0) -> list[bytes]:
        """Give frames that start exactly as far apart as the set says, the last of them `age_ns` ago.

        They start later where a stream's time would not rise otherwise, and never before `not_before_ns`. Returns the
        Submits that were sent.
        """
        slots = [self._filled(frame) for _, frame in frames]
        last_ns = max(at_ns for at_ns, _ in frames)
        behind_ns = [last_ns - at_ns for at_ns, _ in frames]
        streams = [frame.stream for _, frame in frames]
        rising_ns = [self._last_sof_ns.get(stream, 0) + 1 + one for stream, one in zip(streams, behind_ns, strict=True)]
        begin_ns = max(time.monotonic_ns() - age_ns, not_before_ns, *rising_ns)
        while (left_ns := begin_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9 + 1e-6)
        packets = []
        for stream, slot, one in zip(streams, slots, behind_ns, strict=True):
            self._last_sof_ns[stream] = begin_ns - one
            packets.append(self.cameras[stream].submit(slot, sequence, begin_ns - one)[HEADER_BYTES:])
        return packets

    def _filled(self, frame: LoggedFrame) -> Frame:
        """A slot with the frame's pixels."""
        camera = self.cameras[frame.stream]
        given = camera.acquire(self.timeout_s)
        if frame.pixels is None or len(frame.pixels) != len(given.pixels):
            camera.discard(given)
            raise LogRefused(
                LogRefusal.FORMAT, f"frame {frame.submit.sequence} of {frame.stream} is not of the stream's format",
                expected=f"{camera.stream_format.buffer_bytes} bytes", found=f"{len(frame.pixels or b'')} bytes",
                todo="do not use this log; record it again",
            )  # fmt: skip
        given.pixels[:] = np.frombuffer(frame.pixels, np.uint8)
        return given

    def outputs(self, model: str, delivery: Delivery) -> dict[str, NDArray[Any]]:
        """A result's outputs as they are compared: bfloat16 as float32."""
        views = {view.name: view for view in self.consumers[model].subscribed.outputs}
        return {name: values_of(views[name], array) for name, array in delivery.outputs.items()}

    def _settled(self, stream: str, sequence: int) -> Release:
        camera = self.cameras[stream]
        deadline_s = time.monotonic() + self.timeout_s
        while True:
            for release in camera.releases():
                if release.sequence == sequence:
                    return release
            if not camera.wait(max(0.0, deadline_s - time.monotonic())):
                raise TimeoutError(f"frame {sequence} of {stream} was not released within {self.timeout_s} s")

    def _result(self, model: str, sequence: int) -> Delivery:
        while True:
            delivery = self.consumers[model].recv(self.timeout_s)
            if delivery.receipt.frames[0].sequence == sequence:
                return delivery


def status_of(release: Release) -> str:
    """`run`, `late`, … and for a refused frame the refusal's code."""
    status = ReleaseStatus(release.status)
    return (status if status is not ReleaseStatus.REFUSED else RefusalCode(release.code)).name.lower()
