"""A clock of frame periods: in lock-step as fast as each period is done, or in real time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Clock"]


@dataclass
class Clock:
    """`now_s`: seconds of the clock at the period that is under way."""

    real_time: bool = False
    now_s: float = 0.0

    def periods(self, seconds: float, rate_hz: float = 20.0) -> Iterator[int]:
        """The numbers of the periods in `seconds`, from 0; in real time each when it is due."""
        start_s = time.monotonic()
        for index in range(round(seconds * rate_hz)):
            self.now_s = index / rate_hz
            if self.real_time:
                time.sleep(max(0.0, start_s + self.now_s - time.monotonic()))
            yield index
