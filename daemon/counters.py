"""What became of the frame sets of one model, counted for as long as its name serves."""

import dataclasses
from dataclasses import dataclass, field

from daemon.histogram import StageTimes


@dataclass
class Counters:
    """Counts since the daemon started, over every release of the model, and the last run's times in ns.

    published: results. torn, canary, not_finite: runs that were discarded for it (torn also before they ran).
    stale_aux: sets refused for an aux input. device_errors: runs that the device did not finish.
    deadline_missed: results published too late. late_sets: complete sets dropped as late.
    late_arrivals: frames that came after their own deadline.
    skew: frames without a partner in time. skipped_sets: sets skipped by contract.
    state_only: runs that only kept state in step. state_tainted: discarded runs whose state was reset.
    fences_signaled, fences_failed: how the fences of its runs ended. stages: where the time of its results went.
    """

    published: int = 0
    torn: int = 0
    canary: int = 0
    not_finite: int = 0
    stale_aux: int = 0
    device_errors: int = 0
    deadline_missed: int = 0
    skew: int = 0
    late_sets: int = 0
    late_arrivals: int = 0
    skipped_sets: int = 0
    state_only: int = 0
    state_tainted: int = 0
    fences_signaled: int = 0
    fences_failed: int = 0
    last_run_ns: int = 0
    last_latency_ns: int = 0
    stages: StageTimes = field(default_factory=StageTimes, repr=False, compare=False)

    def numbers(self) -> dict[str, int]:
        """All but the histograms, by name."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "stages"}
