"""Gives the device to the pipelines in turn: `daemon.turns` decides, this asks it whenever something has changed.

A frame came, a run ended, a model paused or began to serve: each calls `pump`, which starts runs until nothing more can
start. Where nobody's turn has come a model may use the pause to bring its state in step with frames that never ran.
"""

from __future__ import annotations

import time
from typing import Protocol

from daemon.loop import Loop
from daemon.turns import Claim, Turns
from hal.accelerator import DeviceOptions, Properties


class Member(Protocol):
    """A pipeline as the dispatcher sees it."""

    claim: Claim

    def refresh(self, now_ns: int) -> None:
        """Brings the claim up to date: whether a set of frames waits that could run now."""
        ...

    def start_next(self, now_ns: int) -> None:
        """It is this member's turn: starts its run, or ends the frames that the claim was made for."""
        ...

    def catch_up(self, now_ns: int) -> None:
        """May start a run that keeps state in step, if it fits."""
        ...


class Dispatcher:
    """The members that serve, and the turns between them."""

    def __init__(self, turns: Turns, loop: Loop) -> None:
        self.turns = turns
        self.loop = loop
        self._members: dict[Claim, Member] = {}
        self._pumping = False
        self._again = False
        loop.add_timer(lambda: turns.retry_ns, lambda now_ns: self.pump())

    def join(self, member: Member) -> None:
        """A member begins to serve."""
        self._members[member.claim] = member
        self.turns.join(member.claim)
        self.pump()

    def leave(self, member: Member) -> None:
        """A member serves no more; harmless where it never joined."""
        self._members.pop(member.claim, None)
        self.turns.leave(member.claim)

    def pump(self) -> None:
        """Starts every run whose turn has come. May be called from within itself."""
        self._again = True
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._again:
                self._again = False
                self._turn(time.monotonic_ns())
        finally:
            self._pumping = False

    def _turn(self, now_ns: int) -> None:
        for member in self._members.values():
            member.refresh(now_ns)
        claim = self.turns.pick(now_ns)
        if claim is not None:
            self._members[claim].start_next(now_ns)
            self._again |= len(self._members) > 1 or self.turns.has_room(claim)  # else nobody else could start
            return
        for member in self._members.values():
            member.catch_up(now_ns)

    def load_percent(self, without: Claim | None = None, more: Claim | None = None) -> float:
        """What the members ask of the device, in percent of it, by the measured p99 and the cameras' periods."""
        claims = [claim for claim in self.turns.claims if claim is not without]
        return 100 * self.turns.load([*claims, more] if more is not None else claims)


def places(driver: str, device: Properties, options: DeviceOptions) -> int:
    """How many places a device has: a run of the CPU driver takes a core for each of its threads, else all of it.

    Workers that are pinned share the first of the pinned cores, whatever model they are of.
    """
    return device.threads if driver == "cpu" and not options.pin_cores else 1
