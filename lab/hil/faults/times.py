"""Times and sequence numbers as cameras get them wrong: refused by their own reason, and the stream goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from abi.colour import ClockId
from client.camera import Camera
from lab.hil.bench import Bench, Need
from lab.hil.clients import LIMIT_S, ended, picture, submit
from lab.hil.faults.fault import Fault
from lab.hil.probe import frame_format
from lab.hil.verdict import WrongAnswer, expect

__all__ = ["FAULTS"]

SUSPEND_NS = 3_600 * 10**9
NS_PER_S = 10**9


def send_as_told(camera: Camera, bench: Bench, frames: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Submits (sequence, SOF) whatever our own machine thinks of them; the camera's refusals by code."""
    for sequence, sof_ns in frames:
        camera._stream.last_sequence = None  # an honest client would not send it
        submit(camera, sequence, bench.noise(sequence), sof_ns=sof_ns)
    return dict(ended(camera)["refusals"])


def not_rising(frames: Sequence[tuple[int, int]], refusals: dict[str, int]) -> Callable[[Bench], str]:
    """The injection of frames as (sequence, step of SOF in ns); all but the refused must be taken."""

    def inject(bench: Bench) -> str:
        dropped = bench.status()["streams"].get(bench.stream, {}).get("camera_dropped", 0)
        base_ns = time.monotonic_ns()
        with bench.open_first() as camera:
            found = send_as_told(camera, bench, [(sequence, base_ns + step_ns) for sequence, step_ns in frames])
            expect("refusals", found, refusals)
            ledger = camera.ledger.as_dict()
        expect("frames refused of those submitted", (ledger["refused"], ledger["submitted"]),
               (sum(refusals.values()), len(frames)))  # fmt: skip
        expect("frames counted as lag", bench.status()["streams"][bench.stream]["camera_dropped"], dropped)
        return f"of {len(frames)} frames refused: {found}"

    return inject


def clocks(bench: Bench) -> str:
    """A camera whose clock is an hour off the one it declared; then one in each clock that is right."""
    words = []
    for sequence, (declared, ahead_ns, code) in enumerate(
        ((ClockId.BOOTTIME, -SUSPEND_NS, "time_stale"), (ClockId.MONOTONIC, SUSPEND_NS, "time_in_future")), 1
    ):
        now_ns = _read(declared)
        with bench.camera(format=frame_format(clock=declared)) as camera:
            submit(camera, sequence, picture(1), sof_ns=now_ns + ahead_ns)
            expect("refusals", ended(camera)["refusals"], {code: 1})
            age_ns = bench.status()["streams"]["road"]["refused_age_ns"]
        if abs(age_ns + ahead_ns) > LIMIT_S * NS_PER_S:
            raise WrongAnswer("age that is told", f"{-ahead_ns / 1e9:.0f} s", f"{age_ns / 1e9:.1f} s")
        words.append(f"{declared.name}: {code}, age {age_ns / 1e9:.1f} s")
        with bench.camera(format=frame_format(clock=declared)) as camera, bench.consumer() as consumer:
            before_ns = time.monotonic_ns()
            submit(camera, 1, picture(1), sof_ns=_read(declared))
            receipt = consumer.recv(timeout_s=LIMIT_S).receipt
            frame, after_ns = receipt.frames[0], time.monotonic_ns()
        slack_ns = receipt.clock_error_ns
        if not before_ns - slack_ns <= frame.sof_monotonic_ns <= after_ns + slack_ns:
            raise WrongAnswer("SOF in CLOCK_MONOTONIC", f"{before_ns}..{after_ns}", str(frame.sof_monotonic_ns))
    return "; ".join(words)


def _read(clock: ClockId) -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME if clock is ClockId.BOOTTIME else time.CLOCK_MONOTONIC)


def skew(bench: Bench) -> str:
    """Two cameras whose SOF skew grows from 0 to 40 ms in steps of 10 ms, then is 0 again; the limit is 15 ms."""
    limit_ns, period_ns, refused = 15_000_000, 100_000_000, 0
    with bench.consumer("pair") as consumer, bench.camera("left") as left, bench.camera("right") as right:
        begin_ns = time.monotonic_ns() - NS_PER_S
        for sequence, skew_ns in enumerate((0, 10_000_000, 20_000_000, 30_000_000, 40_000_000, 0)):
            sof_ns = submit(left, sequence, picture(sequence), sof_ns=begin_ns + sequence * period_ns)
            submit(right, sequence, picture(sequence + 50), sof_ns=sof_ns + skew_ns)
            if skew_ns <= limit_ns:
                frames = consumer.recv(timeout_s=LIMIT_S).receipt.frames
                expect("frames that ran together", [one.sequence for one in frames], [sequence, sequence])
            else:
                refused += 1
                expect("refusals of the older", ended(left)["refusals"], {"out_of_skew": refused})
        ended(right)
    return f"{refused} pairs beyond 15 ms refused, those within it run, and it recovers"


FAULTS = (
    Fault("frames/11", "monotonic time taken for boottime",
          "ages right in both; a wrong declaration shows as stale or future, with the amount", Need.PROBES, clocks),
    Fault("frames/12", "time goes backwards, crash", "refused: time not rising; the stream goes on", Need.SERVING,
          not_rising([(1, 0), (2, -1), (3, 0), (4, 1)], {"time_not_rising": 2})),
    Fault("frames/13", "identical times", "refused: time not rising", Need.SERVING,
          not_rising([(1, 0), (2, 0), (3, 1)], {"time_not_rising": 1})),
    Fault("frames/16", "frame ids repeat", "second refused as duplicate; not counted as lag", Need.SERVING,
          not_rising([(5, 0), (5, 1), (6, 2)], {"sequence_repeated": 1})),
    Fault("frames/29", "cameras drift out of sync", "runs within the limit, then refused and counted; recovers",
          Need.PROBES, skew),
)  # fmt: skip
