"""A camera and a daemon live together at random: submits, runs, drops, resets, delays, closed streams, lost sessions.

Packets wait in both directions for as long as hypothesis likes. Held at every step: no slot is owned twice, none is
lost, every ledger balances, and a slot in flight stays so until its fence or a reset.
"""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from abi import messages as m
from abi.flat import Release, ReleaseStatus, Submit
from abi.lease import LeaseEvent, LeaseState
from abi.messages import Role
from abi.packet import RefusalCode
from abi.session import ClientSession
from abi.stream import DaemonStream, TimeLimits
from tests.support.link import Link, stream_format

SLOTS = 3
DROPS = [ReleaseStatus.SUPERSEDED, ReleaseStatus.LATE, ReleaseStatus.TORN, ReleaseStatus.LOST]
REFUSED = [RefusalCode.TIME_NOT_RISING, RefusalCode.TIME_STALE, RefusalCode.TIME_IN_FUTURE,
           RefusalCode.SEQUENCE_REPEATED]  # fmt: skip
FENCED = [ReleaseStatus.RUN, ReleaseStatus.TORN, ReleaseStatus.LOST]


class CameraAndDaemon(RuleBasedStateMachine):
    """`up`, `down`: packets under way. `given`, `returned`: frames of this stream, by (slot, generation)."""

    def __init__(self) -> None:
        super().__init__()
        self.orphans: list[tuple[DaemonStream, int]] = []  # dead cameras' streams, and the frames they had submitted
        self.sequence = 0
        self.now_ns = 10**6
        self.next_id = 1
        self.connect()

    def connect(self) -> None:
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.link = Link(Role.CAMERA, TimeLimits(max_age_ns=10_000, future_tolerance_ns=10)).greet()
        self.open()

    def open(self) -> None:
        self.id = self.next_id
        self.next_id += 1
        self.link.ask(m.OpenStream("road", stream_format()))
        self.link.answer(m.StreamOpened(self.id, SLOTS))
        self.link.ask(m.RegisterBuffers(self.id, SLOTS), SLOTS + 1)
        self.link.answer(m.BuffersRegistered(self.id, SLOTS, True))
        self.given: set[tuple[int, int]] = set()
        self.returned: set[tuple[int, int]] = set()

    def mine(self) -> list[int]:
        """Slots that the camera may write."""
        leases = self.link.client.streams[self.id].leases
        return [slot for slot, lease in enumerate(leases) if not lease.held]

    def held(self, state: LeaseState) -> list[int]:
        """Slots that the daemon has in this state."""
        stream = self.link.daemon.streams[self.id]
        return [slot for slot, lease in enumerate(stream.leases) if lease.state is state]

    @precondition(lambda self: self.mine())
    @rule(data=st.data(), gap=st.integers(1, 3), sof_step=st.sampled_from([5, 5, 5, 0, -5, -20_000, 1000]))
    def submit(self, data: st.DataObject, gap: int, sof_step: int) -> None:
        """A camera submits; one time in a few with a time that the daemon will not like."""
        slot = data.draw(st.sampled_from(self.mine()))
        self.sequence += gap
        sof_ns = self.now_ns + sof_step
        packet = self.link.client.submit(
            self.id, slot, sequence=self.sequence, sof_ns=sof_ns, eof_ns=sof_ns, control_word=2
        )
        self.up.append(packet)
        self.given.add((slot, self.link.client.streams[self.id].leases[slot].generation))
        self.now_ns += 10

    @precondition(lambda self: self.up)
    @rule()
    def deliver_up(self) -> None:
        before = self.link.daemon.streams[self.id].held
        event = self.link.daemon.receive_submit(self.up.popleft(), 0, self.now_ns)
        if isinstance(event, Submit):
            assert (event.slot, event.generation) in self.given
            assert self.link.daemon.streams[self.id].held == before + 1
        else:
            assert event.code in REFUSED
            self.down.append(self.link.daemon.pack_release(event))

    @precondition(lambda self: self.down)
    @rule()
    def deliver_down(self) -> None:
        (release,) = self.link.client.receive(self.down.popleft())
        assert isinstance(release, Release)
        key = release.slot, release.generation
        assert key in self.given
        assert key not in self.returned  # exactly one Release for each Submit
        self.returned.add(key)

    @precondition(lambda self: len(self.up) > 1 or len(self.down) > 1)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        """Packets under way change places, which no socket does: late ones are refused, nothing else comes of it."""
        for queue in (self.up, self.down):
            packets = data.draw(st.permutations(list(queue)))
            queue.clear()
            queue.extend(packets)

    @precondition(lambda self: self.held(LeaseState.SUBMITTED))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.link.daemon.start(self.id, data.draw(st.sampled_from(self.held(LeaseState.SUBMITTED))))

    @precondition(lambda self: self.held(LeaseState.SUBMITTED))
    @rule(data=st.data(), status=st.sampled_from(DROPS))
    def drop(self, data: st.DataObject, status: ReleaseStatus) -> None:
        self.finish(data.draw(st.sampled_from(self.held(LeaseState.SUBMITTED))), LeaseEvent.DROP, status)

    @precondition(lambda self: self.held(LeaseState.IN_FLIGHT))
    @rule(data=st.data(), status=st.sampled_from(FENCED))
    def fence(self, data: st.DataObject, status: ReleaseStatus) -> None:
        self.finish(data.draw(st.sampled_from(self.held(LeaseState.IN_FLIGHT))), LeaseEvent.FENCE, status)

    @precondition(lambda self: self.held(LeaseState.IN_FLIGHT))
    @rule()
    def reset_device(self) -> None:
        for slot in self.held(LeaseState.IN_FLIGHT):
            self.finish(slot, LeaseEvent.RESET, ReleaseStatus.LOST)

    def finish(self, slot: int, event: LeaseEvent, status: ReleaseStatus) -> None:
        packet = self.link.daemon.release(self.id, slot, event, status)
        assert packet is not None
        self.down.append(packet)

    @rule()
    def reopen(self) -> None:
        """The camera closes its stream with frames under way, waits for them, and opens it anew."""
        close = self.link.client.send(m.CloseStream(self.id))
        while self.up:
            self.deliver_up()
        self.link.daemon.receive(close)
        if self.id in self.link.daemon.streams:
            for slot in self.held(LeaseState.IN_FLIGHT):
                self.finish(slot, LeaseEvent.FENCE, ReleaseStatus.RUN)
        if self.id in self.link.daemon.streams:
            for slot in self.held(LeaseState.SUBMITTED):
                self.finish(slot, LeaseEvent.DROP, ReleaseStatus.SUPERSEDED)
        while self.down:
            self.deliver_down()
        assert self.link.client.streams == self.link.daemon.streams == {}
        assert self.given == self.returned
        self.open()

    @rule()
    def camera_dies(self) -> None:
        """Packets under way are lost; what is in flight stays the daemon's until its fence."""
        stream = self.link.daemon.streams[self.id]
        for slot in self.held(LeaseState.SUBMITTED):
            stream.finish(slot, LeaseEvent.DROP, ReleaseStatus.LOST)
        self.orphans.append((stream, stream.ledger.submitted))
        self.connect()

    @rule()
    def daemon_dies(self) -> None:
        """With all that is under way. The camera begins anew with a daemon that knows nothing."""
        old = self.link.client.streams[self.id]
        self.connect()
        assert old.ledger.submitted == sum(old.ledger.released) + old.ledger.held
        assert all(lease.generation == 0 for lease in self.link.daemon.streams[self.id].leases)

    @precondition(lambda self: self.orphans)
    @rule()
    def orphaned_fences_signal(self) -> None:
        stream, submitted = self.orphans.pop()
        for slot, lease in enumerate(stream.leases):
            if lease.state is LeaseState.IN_FLIGHT:
                stream.finish(slot, LeaseEvent.FENCE, ReleaseStatus.RUN)
        assert stream.held == stream.ledger.held == 0
        assert stream.ledger.submitted == submitted == sum(stream.ledger.released)

    @invariant()
    def no_slot_is_owned_twice(self) -> None:
        """What the daemon holds, the camera does not; what neither holds is under way."""
        client, daemon = self.link.client.streams[self.id], self.link.daemon.streams[self.id]
        for slot, (ours, theirs) in enumerate(zip(client.leases, daemon.leases, strict=True)):
            assert not theirs.held or ours.held, f"slot {slot} is the camera's and the daemon's"
            assert theirs.generation <= ours.generation <= theirs.generation + 1
        under_way = len(self.up) + len(self.down)
        assert client.held == daemon.held + under_way

    @invariant()
    def ledgers_balance(self) -> None:
        client, daemon = self.link.client.streams[self.id], self.link.daemon.streams[self.id]
        for stream in (client, daemon, *(orphan for orphan, _ in self.orphans)):
            ledger = stream.ledger
            assert ledger.submitted == sum(ledger.released) + ledger.held
            assert ledger.held == stream.held
            assert sum(ledger.refusals.values()) == ledger.released[ReleaseStatus.REFUSED]
        assert client.ledger.submitted == daemon.ledger.submitted + len(self.up)
        assert len(self.given) == client.ledger.submitted

    @invariant()
    def the_session_is_open(self) -> None:
        assert isinstance(self.link.client, ClientSession)
        assert not self.link.client.closed
        assert not self.link.daemon.closed


CameraAndDaemon.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCameraAndDaemon = CameraAndDaemon.TestCase
