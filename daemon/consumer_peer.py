"""A consumer's session: it subscribes to models and is told of each result. It can hold nothing and stop nobody.

Results that it does not take at once wait here, by its policy: the newest, or up to `queue`; what is passed over is
counted in `missed`. The outputs themselves are in the ring, which it can only read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from abi import messages as m
from abi.messages import DeliveryPolicy, Role
from abi.packet import Kind, RefusalCode
from abi.receipt import Receipt
from abi.session import Event
from daemon.config import Config
from daemon.peer import Arrival, Peer, PeerContext
from daemon.pipeline import Pipeline
from daemon.ring import ResultRing
from daemon.tap import MAX_TAPS, Tap
from daemon.transport import Descriptors

_SUBSCRIPTIONS = 8  # of one session


class ConsumerHost(Protocol):
    """What a consumer's session needs of the daemon."""

    config: Config

    def next_id(self) -> int: ...

    def pipeline_of(self, model: str) -> Pipeline | None:
        """The pipeline of the active model of this name."""
        ...

    def subscribed(self, subscription: Subscription) -> None: ...

    def unsubscribed(self, subscription: Subscription) -> None: ...


class Subscription:
    """One subscription: what waits for its consumer, and how many results it missed."""

    def __init__(self, peer: ConsumerPeer, identity: int, model: str, limit: int) -> None:
        self.peer = peer
        self.identity = identity
        self.model = model
        self.missed = 0
        self.waiting: deque[tuple[Receipt, int, int]] = deque()
        self._limit = limit

    def deliver(self, receipt: Receipt, slot: int, slot_sequence: int) -> None:
        """Tells the consumer of a result that stands in the ring."""
        self.waiting.append((receipt, slot, slot_sequence))
        self.peer.flush(self)
        while len(self.waiting) > self._limit:
            self.waiting.popleft()
            self.missed += 1


class ConsumerPeer(Peer):
    """See the module."""

    role = Role.CONSUMER

    def __init__(
        self, arrival: Arrival, context: PeerContext, on_closed: Callable[[Peer], None], host: ConsumerHost
    ) -> None:
        self._host = host
        self._subscriptions: list[Subscription] = []
        self._tap: Tap | None = None
        super().__init__(arrival, context, on_closed)

    @property
    def may_idle(self) -> bool:
        """A subscriber listens; one that has not subscribed has nothing to be here for."""
        return bool(self._subscriptions) or self._tap is not None

    def handle(self, event: Event, descriptors: Descriptors, now_ns: int) -> None:
        match event:
            case m.Subscribe():
                self._subscribe(event)
            case m.Tap():
                self._begin_tap(event)
            case _:
                super().handle(event, descriptors, now_ns)

    def flush(self, subscription: Subscription) -> None:
        """Sends what waits, as far as the consumer takes it."""
        while subscription.waiting and not self.closed:
            receipt, slot, sequence = subscription.waiting[0]
            result = receipt.to_result(subscription.identity, slot, sequence, subscription.missed)
            if not self.offer(self.session.pack_result(result)):
                return
            subscription.waiting.popleft()

    def on_writable(self) -> None:
        for subscription in self._subscriptions:
            self.flush(subscription)

    def before_close(self) -> None:
        for subscription in self._subscriptions:
            self._host.unsubscribed(subscription)
        self._subscriptions.clear()
        if self._tap is not None:
            self._context.taps.remove(self._tap)

    def _begin_tap(self, message: m.Tap) -> None:
        taps = self._context.taps
        if not self.permits(self._host.config.tap):
            found, action = f"uid {self.who.uid}", "list the user or its group under [tap] in the configuration"
            self._refuse_tap(RefusalCode.NOT_PERMITTED, "user", "one that may tap", found, action)
        elif taps.full:
            expected, action = f"at most {MAX_TAPS}", "end another recorder"
            self._refuse_tap(RefusalCode.LIMIT, "taps", expected, "one more", action)
        else:
            tap = Tap(self, taps.next_id(), self.label, self.who.uid, pixels=message.pixels)
            self.say(m.Tapped(tap.identity))
            if not self.closed:
                self._tap = tap
                taps.add(tap)

    def _refuse_tap(self, code: RefusalCode, what: str, expected: str, *rest: str) -> None:
        found, action = rest
        self.refuse(m.Refusal(code, Kind.TAP, what, expected, found, action))

    def _subscribe(self, message: m.Subscribe) -> None:
        self.about = {"MODEL": message.model}
        pipeline = self._host.pipeline_of(message.model)
        if not self.permits(self._host.config.subscribe):
            found, action = f"uid {self.who.uid}", "list the user or its group in the configuration"
            self._refuse(RefusalCode.NOT_PERMITTED, "user", "one that may subscribe", found, action)
        elif pipeline is None:
            action = "subscribe to a model that `fenced status` shows"
            self._refuse(RefusalCode.NOT_READY, "model", "an active model", message.model, action)
        elif len(self._subscriptions) >= _SUBSCRIPTIONS:
            expected, found = f"at most {_SUBSCRIPTIONS}", "one more"
            self._refuse(RefusalCode.LIMIT, "subscriptions", expected, found, "open another session")
        elif message.policy is DeliveryPolicy.EVERY and message.queue >= pipeline.ring.slots:
            expected = f"less than the ring's {pipeline.ring.slots} slots, or waiting results would be overwritten"
            action = "ask for a shorter queue, or configure limits.ring_slots"
            self._refuse(RefusalCode.LIMIT, "queue", expected, str(message.queue), action)
        else:
            self._accept(message, pipeline, pipeline.ring)

    def _accept(self, message: m.Subscribe, pipeline: Pipeline, ring: ResultRing) -> None:
        limit = message.queue if message.policy is DeliveryPolicy.EVERY else 1
        subscription = Subscription(self, self._host.next_id(), message.model, limit)
        answer = m.Subscribed(subscription.identity, ring.slots, ring.slot_bytes, pipeline.model.digest, ring.views)
        self.say(answer, (ring.descriptor,))
        if not self.closed:
            self.keep_unread_few()
            self._subscriptions.append(subscription)
            self._host.subscribed(subscription)

    def _refuse(self, code: RefusalCode, what: str, expected: str, *rest: str) -> None:
        found, action = rest
        self.refuse(m.Refusal(code, Kind.SUBSCRIBE, what, expected, found, action))
