"""Which frame runs next, and why the others do not. Pure: no clock, no I/O; `now_ns` is CLOCK_MONOTONIC and passed in.

One scheduler serves one entrypoint. Frames of each of its streams wait in a short queue; a run takes one frame from
every stream, paired by start of frame (SOF) and never by sequence. Every frame that is offered comes out exactly once:
in a run or as a Drop with its reason, so that the drop ledger always balances.
"""

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter, itemgetter
from typing import NamedTuple


class DropReason(Enum):
    """Why a frame never reached the device."""

    SUPERSEDED = "superseded"  # a newer frame took its place
    LATE = "late"  # its deadline had passed, or would have, before it could run
    SKEW = "skew"  # no frame of another stream was near enough in time
    CLOSED = "closed"  # its stream was closed while it waited
    SKIPPED = "skipped"  # its model's misses persist, and the contract skips every second set


class Waiting(NamedTuple):
    """A submitted frame as scheduling sees it."""

    stream: int
    # Index of the stream in the entrypoint's contract.
    slot: int
    generation: int
    sequence: int
    sof_ns: int
    # SOF in CLOCK_MONOTONIC.


_sof, _head = attrgetter("sof_ns"), itemgetter(0)  # on a frame's way: no calls into Python


class Drop(NamedTuple):
    """A frame that will not run."""

    frame: Waiting
    reason: DropReason


@dataclass(frozen=True)
class Rule:
    """How an entrypoint's frames are scheduled. Times in ns; 0 switches the deadline off."""

    streams: int
    queue_frames: tuple[int, ...]
    # For each stream: how many frames may wait. 1 is latest-wins.
    max_skew_ns: int
    deadline_ns: int

    def __post_init__(self) -> None:
        if len(self.queue_frames) != self.streams or self.streams < 1 or min(self.queue_frames) < 1:
            raise ValueError(f"scheduler rule: {self.streams} streams with queues of {self.queue_frames}")


class Scheduler:
    """The waiting frames of one entrypoint.

    missed_sets: complete sets of frames that were dropped for being late; a frame without its partners is no such set.
    """

    def __init__(self, rule: Rule) -> None:
        self.missed_sets = 0
        self._rule = rule
        self._queues: tuple[deque[Waiting], ...] = tuple(deque() for _ in range(rule.streams))

    def set_deadline(self, deadline_ns: int) -> None:
        """Another deadline for every frame, also of those that wait; 0: none."""
        self._rule = replace(self._rule, deadline_ns=deadline_ns)

    def waiting(self) -> int:
        """How many frames wait, over all streams."""
        return sum(len(queue) for queue in self._queues)

    def offer(self, frame: Waiting) -> list[Drop]:
        """Takes a frame whose pixels are ready; returns the frames that it supersedes (or itself, when it is older).

        Frames may become ready out of order (in-fences): the queue stays sorted by sequence, and the oldest goes first.
        """
        queue = self._queues[frame.stream]
        position = len(queue)
        while position and queue[position - 1].sequence > frame.sequence:
            position -= 1
        queue.insert(position, frame)
        drops = []
        while len(queue) > self._rule.queue_frames[frame.stream]:
            drops.append(Drop(queue.popleft(), DropReason.SUPERSEDED))
        return drops

    def ready(self, now_ns: int, expected_run_ns: int) -> tuple[int | None, list[Drop]]:
        """SOF of the oldest frame of the set that can run (None: there is none yet), and the frames dropped.

        A frame is late when `now_ns + expected_run_ns` lies beyond its deadline.
        """
        drops: list[Drop] = []
        while all(self._queues):
            heads = list(map(_head, self._queues))
            oldest = min(heads, key=_sof)
            if self._is_late(oldest, now_ns, expected_run_ns):
                drops.append(self._drop_late(oldest.stream))
            elif max(heads, key=_sof).sof_ns - oldest.sof_ns > self._rule.max_skew_ns:
                drops.append(Drop(self._queues[oldest.stream].popleft(), DropReason.SKEW))
            else:
                return oldest.sof_ns, drops
        return None, drops

    def take(self, now_ns: int, expected_run_ns: int) -> tuple[tuple[Waiting, ...] | None, list[Drop]]:
        """The frames of the set that `ready` finds, in the contract's order, and the frames dropped."""
        sof_ns, drops = self.ready(now_ns, expected_run_ns)
        if sof_ns is None:
            return None, drops
        return tuple(map(deque.popleft, self._queues)), drops

    def oldest_sof_ns(self) -> int | None:
        """SOF of the oldest frame where every stream has one; nothing is judged or dropped."""
        return min(queue[0].sof_ns for queue in self._queues) if all(self._queues) else None

    def expire(self, now_ns: int, expected_run_ns: int) -> list[Drop]:
        """Drops the frames that wait, for a partner or for the device, beyond their own deadline."""
        drops = []
        for stream, queue in enumerate(self._queues):
            while queue and self._is_late(queue[0], now_ns, expected_run_ns):
                drops.append(self._drop_late(stream))
        return drops

    def _drop_late(self, stream: int) -> Drop:
        times = [queue[0].sof_ns for queue in self._queues if queue]
        if len(times) == self._rule.streams and max(times) - min(times) <= self._rule.max_skew_ns:
            self.missed_sets += 1
        return Drop(self._queues[stream].popleft(), DropReason.LATE)

    def next_deadline_ns(self) -> int | None:
        """When `expire` has something to do at the latest; None when nothing waits or there is no deadline."""
        if not self._rule.deadline_ns:
            return None
        return min((queue[0].sof_ns + self._rule.deadline_ns for queue in self._queues if queue), default=None)

    def close(self, stream: int) -> list[Drop]:
        """The stream's camera has gone: its waiting frames are dropped."""
        drops = [Drop(frame, DropReason.CLOSED) for frame in self._queues[stream]]
        self._queues[stream].clear()
        return drops

    def clear(self) -> list[Drop]:
        """The model goes or the device failed: every waiting frame is dropped."""
        return [drop for stream in range(self._rule.streams) for drop in self.close(stream)]

    def _is_late(self, frame: Waiting, now_ns: int, expected_run_ns: int) -> bool:
        return bool(self._rule.deadline_ns) and now_ns + expected_run_ns > frame.sof_ns + self._rule.deadline_ns
