"""Sees a device that hangs by the daemon's own limit, and resets it or gives up.

A run that outlasts its signed budget latches the device. Where a reset succeeds the daemon goes on and the frames in
flight are lost; where it is impossible (a CPU kernel cannot be interrupted) the process must end, for the service
manager to start it anew: only then is the memory that the kernel uses free again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from daemon.loop import Loop
from hal.accelerator import Accelerator
from hal.error import HalError

RESET_LIMIT_NS = 200_000_000  # how long the loop may be kept by a reset; the device serves nobody meanwhile


class DeviceWatch:
    """Asks the device on the loop's time. `on_reset` and `on_lost` say how a failure ended."""

    def __init__(
        self,
        accelerator: Accelerator,
        loop: Loop,
        on_reset: Callable[[HalError], None],
        on_lost: Callable[[HalError], None],
    ) -> None:
        self.resets = 0
        self._accelerator = accelerator
        self._on_reset = on_reset
        self._on_lost = on_lost
        loop.add_timer(self._due_ns, self.look)

    def look(self, now_ns: int) -> None:
        """Latches a device that hangs, and acts on one that is latched."""
        cause = self._accelerator.check(now_ns)
        if cause is None:
            return
        try:
            self._accelerator.reset(time.monotonic_ns() + RESET_LIMIT_NS)
        except HalError:
            self._on_lost(cause)
        else:
            self.resets += 1
            self._on_reset(cause)

    def _due_ns(self) -> int | None:
        due_ns = self._accelerator.due_ns()
        return None if due_ns is None else due_ns + 1
