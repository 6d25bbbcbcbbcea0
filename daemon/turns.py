"""Whose run goes to the device next, when several models share it. Pure: no clock, no I/O; `now_ns` is passed in.

Each model has one claim. The claim of the highest priority goes first; of equal ones that with the earliest deadline,
then the older frame; nobody is passed by for needing more places. A run cannot be interrupted, so a claim waits while
its run, by the measured p99 of all concerned, would make the next frames of a model of higher priority late: those that
wait, and those that are expected one period after the last. The next sets of all higher claims are laid out on the
device twice, with the run before them and without; it starts if nobody who is in time without it becomes late by it.
Where a set could not be in time anyway, or its frame does not come, the set after it counts, until the camera has been
silent for a while.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_NEVER_NS = 1 << 62
_SILENT_PERIODS = 3  # a camera from which so many frames in a row did not come is not waited for


class Ready(NamedTuple):
    """A complete set of frames that waits for its run. `due_ns`: its deadline (CLOCK_MONOTONIC); None: it has none."""

    sof_ns: int
    due_ns: int | None


@dataclass(eq=False)
class Claim:
    """One model's claim on the device. Its owner keeps the fields below `width` up to date.

    priority: higher goes first. width: how many of the device's places a run takes.
    deadline_ns: from SOF to published; 0: none.
    """

    name: str
    priority: int = 0
    width: int = 1
    deadline_ns: int = 0
    ready: Ready | None = None
    run_ns: int = 0
    # The p99 of its runs.
    last_sof_ns: int | None = None
    # SOF of the newest frame that was offered; None: no camera.
    period_ns: int = 0
    # Between its sets; 0: unknown, then no set is expected.
    held_back: int = 0
    # How many sets waited, though there was room, for a model of higher priority or a more urgent one of more places.
    _held_sof_ns: int = field(default=-1, repr=False)

    def next_set(self, now_ns: int) -> Ready | None:
        """The next set that could still be in time: the one that waits, or the first that is expected.

        None where nothing waits, and nothing is expected: no camera, one that has fallen silent, or no deadline.
        """
        if self.ready is not None and self._is_hopeful(self.ready, now_ns):
            return self.ready
        if self.last_sof_ns is None or not self.period_ns or not self.deadline_ns:
            return self.ready
        behind_ns = now_ns + self.run_ns - (self.last_sof_ns + self.deadline_ns)
        periods = max(1, -(-behind_ns // self.period_ns))
        if periods > 1 + _SILENT_PERIODS:
            return self.ready
        sof_ns = self.last_sof_ns + periods * self.period_ns
        return Ready(sof_ns, sof_ns + self.deadline_ns)

    def _is_hopeful(self, ready: Ready, now_ns: int) -> bool:
        return ready.due_ns is None or now_ns + self.run_ns <= ready.due_ns


class _Busy(NamedTuple):
    """A run that is on the device, or is laid out on it."""

    start_ns: int
    end_ns: int
    width: int


class _Laid(NamedTuple):
    """Where a claim's next set would run."""

    start_ns: int
    due_ns: int | None
    end_ns: int

    def suffers(self, without: "_Laid") -> bool:
        """Whether it is late and would not be without the run in question; without a deadline: whether it waits."""
        if self.due_ns is None or without.due_ns is None:
            return self.start_ns > without.start_ns
        return without.end_ns <= without.due_ns and self.end_ns > self.due_ns


class Turns:
    """The claims on a device with `places` places (1: one run at a time).

    `retry_ns`: when a claim that was held back by the last `pick` may try again; None where none was.
    """

    def __init__(self, places: int) -> None:
        self.places = max(1, places)
        self.retry_ns: int | None = None
        self._claims: list[Claim] = []
        self._running: dict[Claim, _Busy] = {}

    def join(self, claim: Claim) -> None:
        """The claim's model begins to serve."""
        claim.width = min(max(1, claim.width), self.places)
        self._claims.append(claim)

    def leave(self, claim: Claim) -> None:
        """The claim's model serves no more; harmless where it had not joined. A run of it goes on until `ended`."""
        if claim in self._claims:
            self._claims.remove(claim)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Everyone who has joined."""
        return tuple(self._claims)

    def began(self, claim: Claim, now_ns: int, run_ns: int = 0) -> None:
        """A run of the claim is on the device, for `run_ns` by its p99 (0: the claim's own).

        RuntimeError where one is already, or there is no room.
        """
        if claim in self._running or self._free() < claim.width:
            raise RuntimeError(f"no place for a run of {claim.name}: {[one.name for one in self._running]} are there")
        self._running[claim] = _Busy(now_ns, now_ns + (run_ns or claim.run_ns), claim.width)

    def ended(self, claim: Claim) -> None:
        """Its run has ended; harmless where it had none."""
        self._running.pop(claim, None)

    def pick(self, now_ns: int) -> Claim | None:
        """The claim whose run starts now; None: nothing can, until a run ends, a set comes or `retry_ns` is reached."""
        self.retry_ns = None
        ready = []
        for claim in self._claims:
            if claim.ready is not None and claim not in self._running:
                ready.append(claim)
        if len(ready) > 1:
            ready.sort(key=_urgency)
        waiting: list[Claim] = []  # more urgent ones that need more places than are free
        for claim in ready:
            if claim.width > self._free():
                waiting.append(claim)
                continue
            retry_ns = self._held_until(claim, waiting, now_ns) if len(self._claims) > 1 else None
            if retry_ns is None:
                return claim
            self._note_held(claim)
            self.retry_ns = retry_ns if self.retry_ns is None else min(self.retry_ns, retry_ns)
        return None

    def has_room(self, claim: Claim) -> bool:
        """Whether the device has the places that a run of the claim takes."""
        return claim not in self._running and self._free() >= claim.width

    def fits_before(self, claim: Claim, run_ns: int, now_ns: int) -> bool:
        """Whether an extra run by the claim's owner makes neither its own next set late nor that of a higher claim."""
        if not self.has_room(claim):
            return False
        own = claim.next_set(now_ns)
        if own is not None and own.due_ns is not None and own.due_ns < now_ns + run_ns + claim.run_ns:
            return False
        higher = [other for other in self._claims if other.priority > claim.priority]
        return self._delayed(higher, claim.width, run_ns, now_ns) is None

    def load(self, claims: Sequence[Claim]) -> float:
        """The share of the device that these take: p99 x places / period of those whose period is known, added up."""
        known = [claim for claim in claims if claim.period_ns]
        return sum(claim.run_ns * claim.width / claim.period_ns for claim in known) / self.places

    def _free(self) -> int:
        return self.places - sum([busy.width for busy in self._running.values()]) if self._running else self.places

    def _held_until(self, claim: Claim, waiting: list[Claim], now_ns: int) -> int | None:
        concerned = [other for other in self._claims if other.priority > claim.priority or other in waiting]
        return self._delayed(concerned, claim.width, claim.run_ns, now_ns) if concerned else None

    def _delayed(self, concerned: list[Claim], width: int, run_ns: int, now_ns: int) -> int | None:
        """None where none of these suffers by a run that starts now; else when the first that does gives up."""
        without = self._lay_out(concerned, [], now_ns)
        with_it = self._lay_out(concerned, [_Busy(now_ns, now_ns + run_ns, width)], now_ns)
        gives_up_ns = [
            _NEVER_NS if laid.due_ns is None else laid.due_ns - claim.run_ns + 1
            for claim, laid in with_it.items()
            if laid.suffers(without[claim])
        ]
        return min(gives_up_ns, default=None)

    def _lay_out(self, claims: list[Claim], extra: list[_Busy], now_ns: int) -> dict[Claim, _Laid]:
        """Where the next set of each would run, in the order of their urgency, beside what is there."""
        busy = [*self._running.values(), *extra]
        laid = {}
        for claim in sorted(claims, key=_urgency):
            coming = claim.next_set(now_ns)
            if coming is None:
                continue
            own = self._running.get(claim)  # one run of a model at a time
            start_ns = self._room_at(busy, claim, max(now_ns, coming.sof_ns, own.end_ns if own is not None else 0))
            laid[claim] = _Laid(start_ns, coming.due_ns, start_ns + claim.run_ns)
            busy.append(_Busy(start_ns, start_ns + claim.run_ns, claim.width))
        return laid

    def _room_at(self, busy: list[_Busy], claim: Claim, from_ns: int) -> int:
        """When there is room for a whole run, from `from_ns` on; a run that outlasts its p99 counts as ending now."""
        for at_ns in sorted({from_ns, *(one.end_ns for one in busy if one.end_ns > from_ns)}):
            looks = [at_ns, *(one.start_ns for one in busy if at_ns < one.start_ns < at_ns + claim.run_ns)]
            if all(self._taken(busy, look_ns) + claim.width <= self.places for look_ns in looks):
                return at_ns
        return from_ns

    @staticmethod
    def _taken(busy: list[_Busy], at_ns: int) -> int:
        return sum(one.width for one in busy if one.start_ns <= at_ns < one.end_ns)

    def _note_held(self, claim: Claim) -> None:
        assert claim.ready is not None
        if claim._held_sof_ns != claim.ready.sof_ns:
            claim._held_sof_ns = claim.ready.sof_ns
            claim.held_back += 1


def _urgency(claim: Claim) -> tuple[int, int, int]:
    ready = claim.ready
    if ready is None:
        return -claim.priority, _NEVER_NS, _NEVER_NS
    return -claim.priority, _NEVER_NS if ready.due_ns is None else ready.due_ns, ready.sof_ns
