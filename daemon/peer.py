"""One connected client: its socket, who it is, and its session machine. Roles differ in what they do with events.

Whatever a peer sends or fails to read ends at most this peer: a protocol error, a broken connection or a full queue
closes it and nobody else. `close` is the one way out, and leaves nothing behind but what a device still reads.
"""

import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from abi import messages as m
from abi.messages import Message, Role
from abi.packet import MAX_DESCRIPTORS, Kind, RefusalCode, RemoteProtocolError, kind_of
from abi.session import DaemonSession, Event
from abi.stream import TimeLimits
from daemon.config import Limits, Peers
from daemon.journal import MessageId
from daemon.log import Log
from daemon.loop import BROKEN, READABLE, WRITABLE, Loop
from daemon.tap import Taps
from daemon.transport import Credentials, Descriptors, Receiver, send

_OUTBOX_PACKETS = 64
_GONE = BROKEN | select.EPOLLRDHUP
_WATCH = READABLE | select.EPOLLRDHUP
_ARRIVED = READABLE | _GONE


class Arrival(NamedTuple):
    """A connection that was accepted, who made it, and when (CLOCK_MONOTONIC)."""

    connection: socket.socket
    who: Credentials
    now_ns: int


class PeerContext:
    """What every peer of a server shares."""

    def __init__(self, loop: Loop, log: Log, limits: Limits, version: str, epoch: int) -> None:
        self.loop = loop
        self.log = log
        self.limits = limits
        self.version = version
        self.epoch = epoch
        self.receiver = Receiver(limits.packet_bytes)
        self.taps = Taps(loop)
        self.internal_errors = 0
        self.refusals: Counter[tuple[str, str]] = Counter()  # by role and code


class Peer:
    """Base of the three roles. `label` names the peer in logs."""

    role: Role

    def __init__(self, arrival: Arrival, context: PeerContext, on_closed: Callable[["Peer"], None]) -> None:
        self.who = who = arrival.who
        self.label = f"{self.role.name.lower()} pid {who.pid} uid {who.uid}"
        self.about: dict[str, str] = {}  # the STREAM or MODEL of its last request, for the journal
        self.last_heard_ns = arrival.now_ns
        self.closed = False
        self._refused = False  # the packet that is being taken
        self._connection = connection = arrival.connection
        self._context = context
        self._on_closed = on_closed
        self._outbox: deque[bytes] = deque()
        limits = context.limits
        self.session = DaemonSession(self.role, TimeLimits(limits.max_age_ns, limits.future_tolerance_ns))
        context.loop.watch(connection.fileno(), self._on_event, _WATCH)

    def permits(self, peers: Peers) -> bool:
        """Whether this peer's user or one of its groups is listed."""
        return self.who.uid in peers.uids or bool(self.who.gids & peers.gids)

    @property
    def may_idle(self) -> bool:
        """Whether silence is in order now, whatever its length."""
        return False

    def may_enter(self) -> bool:
        """Whether the policy lets this peer hold a session at all; overridden by the roles."""
        return True

    def handle(self, event: Event, descriptors: Descriptors, now_ns: int) -> None:
        """Acts on one event of the session; overridden by the roles for their own kinds."""
        raise TypeError(f"a {self.role.name} peer has no use for {type(event).__name__}")

    def receive_flat(self, packet: memoryview, descriptors: Descriptors, now_ns: int) -> bool:
        """Takes the packet when it is one of the hot kind; overridden by the camera."""
        return False

    def on_writable(self) -> None:
        """The connection takes packets again; overridden by the consumer."""

    def before_close(self) -> None:
        """Gives back what the peer holds; overridden by the roles."""

    def say(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a cold message; a peer that does not read is closed."""
        if self.closed:
            return
        self.push(self.session.send(message, len(descriptors)), descriptors)
        if self.session.closed:
            self.close()

    def refuse(self, refusal: m.Refusal) -> None:
        """Refuses a packet, and says so in the log. It does not count as heard."""
        self.note_refused()
        self._context.refusals[self.role.name.lower(), refusal.code.name.lower()] += 1
        self._context.log.warning(
            f"{self.label}: refused {refusal.code.name.lower()}: {refusal.what}: "
            f"expected {refusal.expected}, found {refusal.found}; {refusal.action}",
            MessageId.PACKET_REFUSED,
            todo=refusal.action,
            REFUSAL=refusal.code.name.lower().replace("_", "-"),
            PEER=self.label,
            **self.about,
        )
        self.say(refusal)

    def note_refused(self) -> None:
        """The packet that is being taken leaves the peer as silent as it was: else repeating it would hold a place."""
        self._refused = True

    def push(self, packet: bytes, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a packet or keeps it until the peer reads; closes a peer whose queue is full."""
        if self.closed:
            return
        try:
            if not self._outbox and send(self._connection, packet, descriptors):
                return
        except OSError:
            self.close()
            return
        if descriptors or len(self._outbox) >= _OUTBOX_PACKETS:
            todo = "mend the client, which must read what it is sent"
            self._context.log.warning(f"{self.label}: does not read its packets; closed", todo=todo)
            self.close()
            return
        self._outbox.append(packet)
        self.want_writable(True)

    def offer(self, packet: bytes) -> bool:
        """Sends a packet if the peer takes it now; otherwise False, and `on_writable` is called when it might."""
        if self.closed:
            return False
        try:
            if not self._outbox and send(self._connection, packet):
                return True
        except OSError:
            self.close()
            return False
        self.want_writable(True)
        return False

    def give(self, packet: bytes, descriptors: tuple[int, ...] = ()) -> bool:
        """Sends a packet if the peer takes it now; otherwise False, and it is dropped: nobody comes back to it."""
        if self.closed or self._outbox:
            return False
        try:
            return send(self._connection, packet, descriptors)
        except OSError:
            self.close()
            return False

    def keep_unread_few(self) -> None:
        """Lets the kernel hold only a handful of unread packets, so that what waits, waits here and can be replaced."""
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's own least

    def want_writable(self, wanted: bool) -> None:
        """Whether to be told when the connection takes packets again."""
        self._context.loop.change(self._connection.fileno(), _WATCH | (WRITABLE if wanted else 0))

    def bye(self, reason: str) -> None:
        """Ends the session in good order."""
        if not self.closed:
            self.say(m.Bye(reason))

    def close(self) -> None:
        """Ends the session now. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if not self.session.closed:
            self.session.send(m.Bye())  # not sent: from here the machine knows that nobody listens
        self._context.loop.forget(self._connection.fileno())
        self.before_close()
        self._connection.close()
        self._on_closed(self)

    def check_idle(self, now_ns: int) -> None:
        """Closes a peer that said nothing that was accepted for longer than the limit."""
        silent_ns = now_ns - self.last_heard_ns
        limit_ns = self._context.limits.idle_timeout_ns
        if silent_ns > limit_ns and not self.may_idle:
            expected = f"a packet that is not refused within {limit_ns // 1_000_000} ms"
            found = f"{silent_ns // 1_000_000} ms without one"
            action = "connect when there is something to say"
            self.refuse(m.Refusal(RefusalCode.IDLE, 0, "silence", expected, found, action))

    def _on_event(self, events: int) -> None:
        if events & WRITABLE:
            self._flush()
        if not events & _ARRIVED or self.closed:
            return
        try:  # one packet: the loop comes back for the next, after the other peers had their turn
            received = self._context.receiver.receive(self._connection)
        except OSError:
            self.close()
            return
        if received is None:
            return
        packet, descriptors, truncated = received
        if not packet and events & _GONE:
            descriptors.close()
            self.close()
        else:
            self._take(packet, descriptors, truncated)

    def _flush(self) -> None:
        try:
            while self._outbox:
                if not send(self._connection, self._outbox[0]):
                    return
                self._outbox.popleft()
        except OSError:
            self.close()
            return
        self.want_writable(False)
        self.on_writable()

    def _take(self, packet: memoryview, descriptors: Descriptors, truncated: bool) -> None:
        now_ns = time.monotonic_ns()
        self._refused = False
        try:
            if truncated:
                expected = f"at most {self._context.limits.packet_bytes} bytes and {MAX_DESCRIPTORS} descriptors"
                raise RemoteProtocolError("packet", expected, "more", kind_of(packet))
            if self.receive_flat(packet, descriptors, now_ns):
                return
            for event in self.session.receive(packet, len(descriptors), now_ns):
                self._dispatch(event, descriptors, now_ns)
        except RemoteProtocolError as error:
            action = "send only what session.capnp describes"
            self.refuse(m.Refusal(error.code, error.in_reply_to, error.what, error.expected, error.found, action))
        except Exception as error:  # the bulkhead: a fault that one peer can reach must not end the others
            self._internal_error(error)
        finally:
            if not self._refused:
                self.last_heard_ns = now_ns
            if descriptors:
                descriptors.close()

    def _dispatch(self, event: Event, descriptors: Descriptors, now_ns: int) -> None:
        match event:
            case m.Hello():
                self._greet(event)
            case m.Bye():
                self.close()
            case m.Refusal():  # the machine's own answer to what this peer sent
                self.refuse(event)
            case _:
                self.handle(event, descriptors, now_ns)

    def _greet(self, hello: m.Hello) -> None:
        self.label = f"{self.label} {hello.name!r}"
        if not self.may_enter():
            found = f"uid {self.who.uid}, gids {sorted(self.who.gids)}"
            action = "list the user or its group in the configuration"
            code = RefusalCode.NOT_PERMITTED
            self.refuse(m.Refusal(code, Kind.HELLO, "user", "one that the policy lists", found, action))
            self.close()
            return
        context = self._context
        self.say(m.Welcome(context.version, context.epoch, context.limits.packet_bytes, MAX_DESCRIPTORS))
        context.log.info(f"{self.label}: connected")

    def _internal_error(self, error: Exception) -> None:
        self._context.internal_errors += 1
        at, trace = "?", error.__traceback__
        while trace is not None:  # by hand: the traceback module opens source files, which the sealed guard forbids
            at = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        self._context.log.error(
            f"{self.label}: fault of the daemon, peer closed: {type(error).__name__}: {error} at {at}",
            todo="report it with this line; the others are served on",
        )
        self.close()
