"""The drop ledger of a stream: every submitted frame ends in exactly one column, and the columns always add up.

    submitted = run + superseded + late + torn + refused + lost + held

`held` are the frames that the daemon has now. Frames that the camera never submitted (gaps in the sequence) are
counted beside it as `camera_dropped`.
"""

from __future__ import annotations

from collections import Counter

from abi.flat import ReleaseStatus
from abi.packet import RefusalCode

__all__ = ["Ledger"]


class Ledger:
    """Counters of one stream. Every call to `submit` is followed by exactly one to `release`."""

    __slots__ = ("camera_dropped", "refusals", "released", "submitted")

    def __init__(self) -> None:
        self.submitted = 0
        self.released = [0] * len(ReleaseStatus)
        self.refusals: Counter[RefusalCode] = Counter()
        self.camera_dropped = 0

    @property
    def held(self) -> int:
        """Frames that the daemon holds: submitted and not yet released."""
        return self.submitted - sum(self.released)

    @property
    def not_run(self) -> int:
        """Frames that ended without a run: superseded, late, torn, refused or lost."""
        return sum(self.released) - self.released[ReleaseStatus.RUN]

    def submit(self, gap: int = 0) -> None:
        """A Submit was read; `gap` sequence numbers before it never came."""
        self.submitted += 1
        self.camera_dropped += gap

    def release(self, status: ReleaseStatus, code: RefusalCode = RefusalCode.OK) -> None:
        """A frame ended. `code` is the reason of a refusal, and OK otherwise.

        Raises RuntimeError, changing nothing, when no frame is held or status and code do not belong together.
        """
        if self.held == 0:
            raise RuntimeError("the ledger holds no frame that could be released")
        if (status is ReleaseStatus.REFUSED) == (code is RefusalCode.OK):
            raise RuntimeError(f"a release with status {status.name} cannot have code {code.name}")
        self.released[status] += 1
        if code is not RefusalCode.OK:
            self.refusals[code] += 1

    def __repr__(self) -> str:
        return f"Ledger({', '.join(f'{name}={count}' for name, count in self.as_dict().items() if count)})"

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """All columns by name, for `fenced status`: submitted, run … lost, held, camera_dropped, refusals by code."""
        columns: dict[str, int | dict[str, int]] = {"submitted": self.submitted}
        columns |= {status.name.lower(): self.released[status] for status in ReleaseStatus}
        refusals = {code.name.lower(): count for code, count in sorted(self.refusals.items())}
        return columns | {"held": self.held, "camera_dropped": self.camera_dropped, "refusals": refusals}
