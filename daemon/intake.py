"""The frames of one model that have not run: those that wait, and those that were dropped but may keep state in step.

Scheduling decides (`daemon.scheduler`, `daemon.catch_up`); here its decisions become ends of frames: a Release to the
camera, a column of the ledger, a count. Every frame that comes in goes out once: taken for a run, or ended.
"""

from __future__ import annotations

from abi.flat import ReleaseStatus
from abi.lease import LeaseEvent
from abi.packet import RefusalCode
from daemon.camera_stream import CameraStream
from daemon.catch_up import CatchUp
from daemon.counters import Counters
from daemon.entry import Entries, Entry, Taken
from daemon.scheduler import Drop, DropReason, Rule, Scheduler, Waiting
from daemon.turns import Claim, Ready

_DROPS = {
    DropReason.SUPERSEDED: (ReleaseStatus.SUPERSEDED, RefusalCode.OK),
    DropReason.LATE: (ReleaseStatus.LATE, RefusalCode.OK),
    DropReason.SKEW: (ReleaseStatus.REFUSED, RefusalCode.OUT_OF_SKEW),
    DropReason.CLOSED: (ReleaseStatus.LOST, RefusalCode.OK),
    DropReason.SKIPPED: (ReleaseStatus.SUPERSEDED, RefusalCode.OK),
}
_COUNTED = (DropReason.CLOSED, DropReason.SKIPPED)  # their column of the ledger says too little
_SLOTS_IN_USE = 2  # one on the device, one that the camera writes


def end_dropped(source: CameraStream, frame: Waiting, reason: DropReason, event: LeaseEvent) -> None:
    """The end of a frame that gives no result; `event`: DROP where it never ran, FENCE where it kept state in step."""
    status, code = _DROPS[reason]
    if reason in _COUNTED:
        source.count(reason.value)
    source.end(frame, event, status, code)


class Intake:
    """The waiting frames of one model. `sources`: the open streams by contract position.

    A frame is late that has less time before its deadline than the p99 of the entrypoint that runs next.
    """

    def __init__(self, entries: Entries, queue_frames: tuple[int, ...], claim: Claim) -> None:
        """`claim` is kept up to date from here."""
        primary, state_only = entries.primary.contract, entries.state_only
        self.sources: list[CameraStream | None] = [None] * len(queue_frames)
        self.counters = Counters()
        self._claim = claim
        self._queue_frames = queue_frames
        self._scheduler = Scheduler(Rule(len(queue_frames), queue_frames, primary.max_skew_ns, primary.deadline_ns))
        self.keeps_behind = state_only is not None  # else no dropped frame is of any use
        self._behind = CatchUp(() if state_only is None else state_only.positions, primary.max_skew_ns)
        self._newest_ns: list[int | None] = [None] * len(queue_frames)
        self._busy = False
        self._held_back = 0
        self.run_by(entries.active)

    def run_by(self, entry: Entry) -> None:
        """Frames run through this entrypoint from here: its deadline, and its times, are theirs."""
        self._times = entry.times
        self._deadline_ns = self._claim.deadline_ns = entry.contract.deadline_ns
        self._claim.run_ns = self._times.p99_ns
        self._scheduler.set_deadline(self._deadline_ns)

    @property
    def waiting(self) -> int:
        """Frames that wait for their run."""
        return self._scheduler.waiting()

    @property
    def behind(self) -> int:
        """Frames that were dropped and may still keep state in step."""
        return len(self._behind)

    def source(self, frame: Waiting) -> CameraStream:
        """The stream of a frame that is in here."""
        source = self.sources[frame.stream]
        assert source is not None  # `close` took its frames out of the queues
        return source

    def open(self, source: CameraStream) -> None:
        """A camera has opened the stream at `source.position`."""
        self.sources[source.position] = source
        periods = [one.format.period_ns for one in self.sources if one is not None]
        self._claim.period_ns = max(periods) if len(periods) == len(self.sources) else 0

    def close(self, position: int) -> None:
        """The stream is closed; its waiting frames end."""
        self._finish([*self._behind.clear(), *self._scheduler.close(position)])
        self.sources[position] = None
        self._newest_ns[position] = self._claim.last_sof_ns = None
        self._claim.period_ns = 0

    def offer(self, frame: Waiting, now_ns: int, *, busy: bool) -> None:
        """Takes a frame whose pixels are ready. `busy`: whether a run of the model is on the device.

        One that comes after its own deadline is its camera's fault, and no miss of the model.
        """
        self._busy = busy
        newest_ns = self._newest_ns
        newest_ns[frame.stream] = max(frame.sof_ns, newest_ns[frame.stream] or frame.sof_ns)
        known = [sof_ns for sof_ns in newest_ns if sof_ns is not None]
        self._claim.last_sof_ns = min(known) if len(known) == len(newest_ns) else None
        if self._deadline_ns and now_ns > frame.sof_ns + self._deadline_ns:
            self.counters.late_arrivals += 1
            self._drop([Drop(frame, DropReason.LATE)], now_ns)
        else:
            drops = self._scheduler.offer(frame)
            if drops:
                self._drop(drops, now_ns)

    def refresh(self, now_ns: int) -> int:
        """Says in the claim whether a set could run now, and drops what cannot; returns how many sets it missed."""
        self._busy = False
        if self._claim.held_back != self._held_back:  # another set has waited for a model of higher priority
            self._held_back = self._claim.held_back
            self._times.note_drop(keep_runs=1)
            self._claim.run_ns = self._times.p99_ns
        sof_ns, drops = self._scheduler.ready(now_ns, self._times.p99_ns)
        self._claim_set(sof_ns)
        return self._drop(drops, now_ns) if drops else 0

    def look(self) -> None:
        """Says in the claim whether a set waits for the end of the run before it; nothing is dropped."""
        self._claim_set(self._scheduler.oldest_sof_ns())

    def rest(self) -> None:
        """Says in the claim that nothing of this model may run now."""
        self._claim.ready = None

    def take(self, now_ns: int) -> tuple[Taken, ...]:
        """The set that runs now; empty where there is none."""
        frames, drops = self._scheduler.take(now_ns, self._times.p99_ns)
        taken: tuple[Taken, ...] = ()
        for frame in frames or ():
            taken += ((self.source(frame), frame),)
        if drops:
            self._drop(drops, now_ns)  # may find that a camera has gone; what was taken runs all the same
        return taken

    def skip(self, taken: tuple[Taken, ...]) -> None:
        """A set that was taken does not run, by contract."""
        self.counters.skipped_sets += 1
        self._drop([Drop(frame, DropReason.SKIPPED) for _, frame in taken], 0)

    def take_behind(self) -> tuple[Drop, ...]:
        """The oldest set that may still keep state in step; empty where none is complete."""
        self._finish(self._behind.ready())
        return self._behind.take()

    def give_up_behind(self, before_ns: int | None = None) -> None:
        """What was kept back ends: all of it, or what is older than `before_ns`."""
        self._finish(self._behind.clear() if before_ns is None else self._behind.give_up_before(before_ns))

    def expire(self, now_ns: int, *, busy: bool) -> int:
        """Drops the frames that cannot meet their deadline any more; returns how many sets that misses."""
        self._busy = busy
        drops = self._scheduler.expire(now_ns, self._times.p99_ns)
        return self._drop(drops, now_ns) if drops else 0

    @property
    def due_ns(self) -> int | None:
        """When a waiting frame becomes late."""
        due_ns = self._scheduler.next_deadline_ns()
        return None if due_ns is None else due_ns - self._times.p99_ns + 1

    def clear(self) -> list[Waiting]:
        """Hands over the frames that wait; what was kept back ends."""
        self._finish(self._behind.clear())
        return [drop.frame for drop in self._scheduler.clear()]

    def _claim_set(self, sof_ns: int | None) -> None:
        due_ns = sof_ns + self._deadline_ns if sof_ns is not None and self._deadline_ns else None
        self._claim.ready = None if sof_ns is None else Ready(sof_ns, due_ns)

    def _drop(self, drops: list[Drop], now_ns: int) -> int:
        """Frames that will not run: the stateOnly entrypoint may still see them, else they end. Returns missed sets."""
        missed, self._scheduler.missed_sets = self._scheduler.missed_sets, 0
        self.counters.late_sets += missed
        for drop in drops:
            if drop.reason is DropReason.LATE and now_ns <= drop.frame.sof_ns + self._deadline_ns:
                self._times.note_drop()
                self._claim.run_ns = self._times.p99_ns
            if drop.reason is DropReason.SKEW:
                self.counters.skew += 1
            self._finish(self._behind.offer(drop, self._room_behind(drop.frame)))
        return missed

    def _room_behind(self, frame: Waiting) -> int:
        """How many dropped frames of its stream may be kept: what runs, waits and is written needs slots too."""
        spare = self.source(frame).slot_count - _SLOTS_IN_USE - self._queue_frames[frame.stream]
        return spare if self._busy else spare + 1

    def _finish(self, drops: list[Drop]) -> None:
        for source, frame, reason in [(self.source(frame), frame, reason) for frame, reason in drops]:
            end_dropped(source, frame, reason, LeaseEvent.DROP)
