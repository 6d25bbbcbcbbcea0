"""OpenMetrics text (OpenMetrics 1.0, https://prometheus.io/docs/specs/om/open_metrics_spec/): families and samples.

A family is described once, in a table, and gives its samples when it is asked. The text must fit into one packet:
families stand in the order of their worth, and one that does not fit any more is left out whole and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from daemon.histogram import BOUNDS_NS, Histogram

Labels = dict[str, str]
Sample = tuple[Labels, int | float]
Source = TypeVar("Source")
_BOUNDS = (*(str(bound / 1e9) for bound in BOUNDS_NS), "+Inf")


class Kind(Enum):
    """What a family counts; the suffix that its samples bear stands behind its name."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"
    HISTOGRAM = "histogram"


_SUFFIXES = {Kind.COUNTER: "_total", Kind.GAUGE: "", Kind.INFO: "_info"}


@dataclass(frozen=True)
class Family(Generic[Source]):
    """Samples of one name. `collect` gives them; histograms are given as they are, times in seconds come out.

    labels: the names of the labels that every sample has.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...]
    collect: Callable[[Source], Iterable[tuple[Labels, int | float | Histogram]]]

    def lines(self, source: Source) -> list[str]:
        """Its description and its samples."""
        lines = [f"# TYPE {self.name} {self.kind.value}", f"# HELP {self.name} {_escaped(self.text)}"]
        for labels, value in self.collect(source):
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            if isinstance(value, Histogram):
                lines += _histogram_lines(self.name, shown, value)
            else:
                lines.append(_line(f"{self.name}{_SUFFIXES[self.kind]}", shown, value))
        return lines


def _line(name: str, shown: str, value: int | float) -> str:
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _histogram_lines(name: str, shown: str, histogram: Histogram) -> list[str]:
    counts = histogram.cumulative()
    before = f"{shown}," if shown else ""
    lines = [f'{name}_bucket{{{before}le="{le}"}} {count}' for le, count in zip(_BOUNDS, counts, strict=True)]
    return [*lines, _line(f"{name}_sum", shown, histogram.sum_ns / 1e9), _line(f"{name}_count", shown, counts[-1])]


def render(families: Sequence[Family[Source]], source: Source, *, limit_bytes: int, left_out: str) -> str:
    """The text of all families, at most `limit_bytes` long. `left_out`: name of the gauge of how many did not fit."""
    about = f"# TYPE {left_out} gauge\n# HELP {left_out} Families that did not fit into one packet.\n{left_out}"
    room, missing, parts = limit_bytes - len(about) - len(" 999\n# EOF\n"), 0, list[str]()
    for family in families:
        text = "\n".join([*family.lines(source), ""])
        size = len(text.encode())
        if size > room:
            missing += 1
            continue
        room -= size
        parts.append(text)
    return f"{''.join(parts)}{about} {missing}\n# EOF\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
