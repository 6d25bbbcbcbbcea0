"""One camera stream of a session, as the daemon and as the camera see it: slots, sequence, time, ledger.

`DaemonStream` decides whether a Submit is good and answers for each in the ledger; `CameraStream` makes Submits
that are and takes slots back. Both move their slots by `abi.lease` only. Times of a Submit are in the stream's own
clock; the daemon keeps that clock's offset from CLOCK_MONOTONIC here, in which it judges age.
"""

from __future__ import annotations

from dataclasses import dataclass

from abi.flat import Release, ReleaseStatus, Submit
from abi.lease import ENDINGS, Lease, LeaseEvent
from abi.ledger import Ledger
from abi.packet import Kind, LocalProtocolError, RefusalCode, RemoteProtocolError
from abi.stream_format import StreamFormat

__all__ = ["CameraStream", "DaemonStream", "TimeLimits"]

_OK, _SUBMIT = RefusalCode.OK, LeaseEvent.SUBMIT  # an enum's member costs a call; these come with every frame


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How far a frame's SOF may lie from now, in CLOCK_MONOTONIC nanoseconds."""

    max_age_ns: int = 1_000_000_000
    future_tolerance_ns: int = 5_000_000


class _Stream:
    """What both sides know of a stream."""

    def __init__(self, stream_id: int, name: str, format: StreamFormat, max_slots: int) -> None:
        self.stream_id, self.name, self.format, self.max_slots = stream_id, name, format, max_slots
        self.leases: list[Lease] = []
        self.ledger = Ledger()
        self.closing = False
        self.last_sequence: int | None = None
        self.last_sof_ns: int | None = None

    @property
    def held(self) -> int:
        """Slots that the daemon has."""
        return sum(lease.held for lease in self.leases)

    def _gap(self, sequence: int) -> int:
        """Sequence numbers that were skipped before this one."""
        return 0 if self.last_sequence is None else max(0, sequence - self.last_sequence - 1)

    def register(self, slots: int) -> None:
        """Begin the leases: every slot is FREE at generation 0."""
        self.leases = [Lease() for _ in range(slots)]


class DaemonStream(_Stream):
    """The daemon's side. It outlives its session: slots in flight are finished here when the camera is gone.

    `clock_offset_ns`: the stream's clock minus CLOCK_MONOTONIC, kept up to date by whoever samples clocks.
    `refused_age_ns`: age of the last frame that was refused for its age; negative when it lay in the future.
    """

    def __init__(self, stream_id: int, name: str, format: StreamFormat, max_slots: int, limits: TimeLimits) -> None:
        super().__init__(stream_id, name, format, max_slots)
        self.limits = limits
        self.clock_offset_ns = 0
        self.refused_age_ns: int | None = None

    def accept(self, submit: Submit, now_ns: int | None) -> RefusalCode:
        """Take a submitted slot over, or say why not. Either way the ledger has counted it.

        `now_ns` is CLOCK_MONOTONIC; None leaves the age unjudged. A Submit with a good slot and generation spends
        that generation even when it is refused. A refused time does not become the time to rise above.
        """
        code = self._lease_problem(submit)
        if code is not _OK:
            self.ledger.submit()
            self.ledger.release(ReleaseStatus.REFUSED, code)
            return code
        lease = self.leases[submit.slot]
        lease.move(_SUBMIT)
        lease.sequence = submit.sequence
        code = self._order_problem(submit, now_ns)
        self.ledger.submit(self._gap(submit.sequence))
        if code is not RefusalCode.SEQUENCE_REPEATED:
            self.last_sequence = submit.sequence
        if code is not _OK:
            lease.move(LeaseEvent.DROP)
            self.ledger.release(ReleaseStatus.REFUSED, code)
            return code
        self.last_sof_ns = submit.sof_ns
        return code

    def _lease_problem(self, submit: Submit) -> RefusalCode:
        if submit.slot >= len(self.leases):
            return RefusalCode.UNKNOWN_SLOT
        lease = self.leases[submit.slot]
        if lease.held or submit.generation != lease.generation + 1 or submit.control_word & 1:
            return RefusalCode.BAD_GENERATION
        return _OK

    def _order_problem(self, submit: Submit, now_ns: int | None) -> RefusalCode:
        if self.last_sequence is not None and submit.sequence <= self.last_sequence:
            return RefusalCode.SEQUENCE_REPEATED
        if self.last_sof_ns is not None and submit.sof_ns <= self.last_sof_ns:
            return RefusalCode.TIME_NOT_RISING
        if submit.eof_ns < submit.sof_ns:
            return RefusalCode.TIME_NOT_RISING
        if now_ns is None:
            return _OK
        age_ns = now_ns - (submit.sof_ns - self.clock_offset_ns)
        if -self.limits.future_tolerance_ns <= age_ns <= self.limits.max_age_ns:
            return _OK
        self.refused_age_ns = age_ns
        return RefusalCode.TIME_IN_FUTURE if age_ns < 0 else RefusalCode.TIME_STALE

    def start(self, slot: int) -> None:
        """The slot goes to the device. Raises LeaseError when it is not SUBMITTED."""
        self.leases[slot].move(LeaseEvent.START)

    def finish(
        self,
        slot: int,
        event: LeaseEvent,
        status: ReleaseStatus,
        code: RefusalCode = _OK,
        held_ns: int = 0,
    ) -> Release:
        """End the slot's lease by DROP, FENCE or RESET and count it; the Release that tells the camera.

        Only a FENCE can end a RUN, and only REFUSED has a code. Raises LeaseError when the lease cannot end so, and
        RuntimeError for a call that makes no sense. Neither changes anything.
        """
        if event not in ENDINGS:
            raise RuntimeError(f"{event.name} does not end a lease; expected {', '.join(e.name for e in ENDINGS)}")
        if (status is ReleaseStatus.REFUSED) == (code is RefusalCode.OK):
            raise RuntimeError(f"a release with status {status.name} cannot have code {code.name}")
        if not 0 <= held_ns < 1 << 64:
            raise RuntimeError(f"held_ns is a u64, not {held_ns}")
        if status is ReleaseStatus.RUN and event is not LeaseEvent.FENCE:
            raise RuntimeError(f"only a signalled fence ends a run, not {event.name}")
        lease = self.leases[slot]
        lease.move(event)
        self.ledger.release(status, code)
        return Release(self.stream_id, slot, lease.generation, lease.sequence, status, code, held_ns)


class CameraStream(_Stream):
    """The camera's side: what it submitted, and what came back."""

    def prepare(
        self, slot: int, *, sequence: int, sof_ns: int, eof_ns: int, control_word: int, exposure_ns: int, flags: int
    ) -> Submit:
        """The Submit that would give a slot to the daemon. Raises LocalProtocolError when it cannot be given so."""
        if self.closing:
            raise LocalProtocolError("stream", "an open stream", f"{self.name!r}, which was closed")
        if not 0 <= slot < len(self.leases):
            raise LocalProtocolError("slot", f"0..{len(self.leases) - 1}", str(slot))
        lease = self.leases[slot]
        if lease.held:
            raise LocalProtocolError(f"slot {slot}", "a slot that is the camera's", "one that the daemon holds")
        last = self.last_sequence
        if last is not None and sequence <= last:
            raise LocalProtocolError("sequence", f"above {last}", str(sequence))
        if eof_ns < sof_ns:
            raise LocalProtocolError("eofNs", f"at least sofNs ({sof_ns})", str(eof_ns))
        if control_word & 1:
            raise LocalProtocolError("controlWord", "even: the slot is not being written", str(control_word))
        return Submit(
            self.stream_id, slot, lease.generation + 1, sequence, sof_ns, eof_ns, control_word, exposure_ns, flags
        )

    def give(self, submit: Submit) -> None:
        """A prepared Submit goes out: from here the slot is the daemon's."""
        lease = self.leases[submit.slot]
        lease.move(_SUBMIT)
        self.ledger.submit(self._gap(submit.sequence))
        lease.sequence = self.last_sequence = submit.sequence

    def take_back(self, release: Release) -> None:
        """The daemon gave a slot back. Raises RemoteProtocolError, changing nothing, when it did not have it."""
        lease = self.leases[release.slot] if release.slot < len(self.leases) else None
        if lease is None or not lease.held:
            raise RemoteProtocolError("Release slot", "a slot that the daemon holds", str(release.slot), Kind.RELEASE)
        found = (release.generation, release.sequence)
        if found != (lease.generation, lease.sequence):
            expected = f"{lease.generation}, {lease.sequence}"
            raise RemoteProtocolError("Release generation, sequence", expected, str(found), Kind.RELEASE)
        if release.status not in _STATUSES or release.code not in _CODES:
            expected, found_text = "a known status and code", f"{release.status}, {release.code}"
            raise RemoteProtocolError("Release status, code", expected, found_text, Kind.RELEASE)
        status, code = ReleaseStatus(release.status), RefusalCode(release.code)
        if (status is ReleaseStatus.REFUSED) == (code is RefusalCode.OK):
            expected, found_text = "a code if and only if refused", f"{status.name}, {code.name}"
            raise RemoteProtocolError("Release status, code", expected, found_text, Kind.RELEASE)
        lease.move(LeaseEvent.DROP)
        self.ledger.release(status, code)


_STATUSES = frozenset(map(int, ReleaseStatus))
_CODES = frozenset(map(int, RefusalCode))
