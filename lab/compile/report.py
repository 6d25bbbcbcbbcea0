"""What a compile did: sizes, launches, times and checks, for a person and for a machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hal.admit import ArenaRange
from lab.compile.checks import Accuracy, CheckResult
from lab.compile.spec import Spec
from lab.compile.tune_cache import Timed
from lab.json_text import json_text

__all__ = ["Accuracy", "CompileReport", "Details", "EntryReport", "LaunchReport", "Stage"]


@dataclass(frozen=True)
class LaunchReport:
    """One launch: its kernel, the cores it is fanned over, its arithmetic and the bytes its arguments span."""

    kernel: str
    cores: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class EntryReport:
    """One entrypoint: when it is run, and which of the launches are its."""

    name: str
    role: str
    first_launch: int
    launch_count: int

    @property
    def launches(self) -> slice:
        """Its launches among all."""
        return slice(self.first_launch, self.first_launch + self.launch_count)


@dataclass(frozen=True)
class Stage:
    """A step of the compile and how long it took."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Details:
    """What only the page shows (`lab.compile.page`).

    launch_spans_ns: start and end of each launch from its run's start, medians; empty where the device gives no times.
    """

    spec: Spec
    accuracy: tuple[Accuracy, ...]
    arena: tuple[ArenaRange, ...]
    launch_spans_ns: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class CompileReport:
    """The result of `lab.compile.compiler.compile_spec`; the bundle itself is at `path`."""

    path: Path
    name: str
    version: str
    release: int
    target: str
    kernels: int
    launches: tuple[LaunchReport, ...]
    entries: tuple[EntryReport, ...]
    arena_bytes: int
    weights_bytes: int
    code_bytes: int
    graph_bytes: int
    bundle_bytes: int
    checks: tuple[CheckResult, ...]
    stages: tuple[Stage, ...]
    details: Details
    tuning: tuple[Timed, ...] = ()
    """What timing found for this model's kernels, largest gain first; empty without `--tune`."""

    @property
    def flops(self) -> int:
        """Arithmetic operations of one run of the primary."""
        return self.flops_of(self.entries[0])

    def flops_of(self, entry: EntryReport) -> int:
        """Arithmetic operations of one run of `entry`."""
        return sum(one.flops for one in self.launches[entry.launches])

    def to_json(self) -> str:
        """The report as JSON, sizes in bytes and times in seconds."""
        values = asdict(replace(self, details=None))  # type: ignore[arg-type]
        spans = [end - start for start, end in self.details.launch_spans_ns]
        del values["details"]
        return json_text({**values, "path": str(self.path), "flops": self.flops, "launch_ns": spans}, indent=2)

    def to_text(self) -> str:
        """The report as plain text: a summary, the checks, and the launches with most arithmetic."""
        lines = [
            f"{self.name} {self.version} (release {self.release}) for {self.target}",
            f"  {self.path}  {self.bundle_bytes} bytes: code {self.code_bytes}, weights {self.weights_bytes}, "
            f"graph {self.graph_bytes}",
            f"  {len(self.launches)} launches of {self.kernels} kernels, {self.flops / 1e6:.1f} MFLOP a run, "
            f"arena {self.arena_bytes} bytes",
            *(
                f"  {one.name} ({one.role}): {one.launch_count} launches, {self.flops_of(one) / 1e6:.1f} MFLOP"
                for one in self.entries
                if len(self.entries) > 1
            ),
            "checks",
            *(f"  {one.name}: {one.seen}" for one in self.checks),
            "heaviest launches",
        ]
        for one in sorted(self.launches, key=lambda one: -one.flops)[:8]:
            lines.append(
                f"  {one.kernel:<40} {one.flops / 1e6:9.2f} MFLOP  {one.bytes / 1e3:9.1f} kB  {one.cores} cores"
            )
        lines += self._tuning_text()
        seconds = sum(one.seconds for one in self.stages)
        lines.append(f"took {seconds:.1f} s: " + ", ".join(f"{one.name} {one.seconds:.1f}" for one in self.stages))
        return "\n".join(lines) + "\n"

    def _tuning_text(self) -> list[str]:
        better = [one for one in self.tuning if one.chosen is not None]
        if not self.tuning:
            return []
        before, after = sum(one.rule_us for one in self.tuning), sum(one.chosen_us for one in self.tuning)
        lines = [
            f"tuned: {len(better)} of {len(self.tuning)} timed kernels better than by the rule, "
            f"{before:.0f} to {after:.0f} us when they were timed"
        ]
        for one in better[:8]:
            chosen = " ".join(f"{name}:{axis}:{amount}" for name, axis, amount in one.chosen or ())
            lines.append(f"  {one.kernel:<40} {one.rule_us:9.1f} to {one.chosen_us:9.1f} us  {chosen}")
        return lines
