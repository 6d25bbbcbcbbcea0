"""The offset between a device's clock and CLOCK_MONOTONIC, as an interval that is never wrong by more than it says.

Each run gives bounds for nothing: the host reads its clock just before and after an enqueue, the device stamps the
command in between, and the end of the run is stamped before the host sees it. The intervals are intersected; between
samples an interval widens by the most that two clocks of one machine can drift apart, because NTP slews
CLOCK_MONOTONIC but not the raw counter behind a device's clock.
"""

from __future__ import annotations

import threading

DRIFT_PER_MILLION = 600  # adjtimex(2) slews by at most 500; the rest is for the device's own oscillator
_MILLION = 1_000_000


class ClockMap:
    """Device time + `offset_ns` = CLOCK_MONOTONIC, within `error_ns`. Both are 0 until the first sample."""

    def __init__(self) -> None:
        self._low_ns = 0
        self._high_ns = 0
        self._sampled_ns: int | None = None
        self._lock = threading.Lock()  # every queue has a thread that samples

    @property
    def offset_ns(self) -> int:
        return (self._low_ns + self._high_ns) // 2

    @property
    def error_ns(self) -> int:
        """Half the interval, rounded up: the largest error of `offset_ns` at the time of the last sample."""
        return -(-(self._high_ns - self._low_ns) // 2)

    def sample(self, low_ns: int, high_ns: int, at_ns: int) -> None:
        """The offset was in low_ns..high_ns at CLOCK_MONOTONIC `at_ns`.

        Bounds that contradict what is known (a device whose clock jumped) replace it; crossed bounds are ignored.
        """
        if low_ns > high_ns:
            return
        with self._lock:
            self._take(low_ns, high_ns, at_ns)

    def _take(self, low_ns: int, high_ns: int, at_ns: int) -> None:
        if self._sampled_ns is not None:
            drift_ns = max(0, at_ns - self._sampled_ns) * DRIFT_PER_MILLION // _MILLION + 1
            old_low, old_high = self._low_ns - drift_ns, self._high_ns + drift_ns
            if old_low <= high_ns and low_ns <= old_high:
                low_ns, high_ns = max(low_ns, old_low), min(high_ns, old_high)
        self._low_ns, self._high_ns, self._sampled_ns = low_ns, high_ns, at_ns
