"""Holding outputs against outputs: per-output tolerances, what is furthest off, and the worst frames.

Within is |a - b| <= max(absolute, relative * |b|) for every element, b being the one that is wanted; the default asks
for equal bits. Two NaNs are alike. An output that is missing, or of another shape or dtype, is infinitely far off.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abi.graph_values import DType, OutputView
from lab.replay.refusal import LogRefusal, LogRefused

KEPT_WORST = 10
Arrays = Mapping[str, NDArray[Any]]
_FLAT = {
    DType.FLOAT32: "<f4", DType.FLOAT16: "<f2", DType.INT8: "i1", DType.UINT8: "u1", DType.INT16: "<i2",
    DType.UINT16: "<u2", DType.INT32: "<i4", DType.UINT32: "<u4", DType.INT64: "<i8", DType.UINT64: "<u8",
    DType.BOOL8: "?", DType.BFLOAT16: "<u2",
}  # fmt: skip


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be from the wanted one: |a - b| <= max(absolute, relative * |b|)."""

    absolute: float = 0.0
    relative: float = 0.0

    def allows(self, distance: NDArray[np.float64], wanted: NDArray[np.float64]) -> bool:
        """Whether every element is near enough; `distance` is |a - b|."""
        return bool(np.all(distance <= np.maximum(self.absolute, self.relative * np.abs(wanted))))


EXACT = Tolerance()


@dataclass(frozen=True)
class Tolerances:
    """One for each output that is named, and one for all others."""

    default: Tolerance = EXACT
    outputs: Mapping[str, Tolerance] = field(default_factory=dict)

    def of(self, output: str) -> Tolerance:
        """That of an output."""
        return self.outputs.get(output, self.default)

    @classmethod
    def load(cls, path: Path) -> Tolerances:
        """From TOML: `[default]` and `[output.NAME]`, each with `absolute` and `relative`. Raises LogRefused."""
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
            default = _tolerance(tree.pop("default", {}), "default")
            outputs = {name: _tolerance(one, f"output.{name}") for name, one in tree.pop("output", {}).items()}
            if tree:
                raise ValueError(f"unknown table {sorted(tree)[0]!r}")
        except (OSError, ValueError, AttributeError, TypeError) as error:
            expected = "[default] and [output.NAME] with absolute and relative, numbers of 0 or more"
            todo = "write the tolerances as docs/bench.md shows"
            raise LogRefused(
                LogRefusal.TOLERANCES, path.name, expected=expected, found=str(error), todo=todo
            ) from error
        return cls(default, outputs)

    def require(self, known: Sequence[str]) -> None:
        """Refuse a tolerance for an output that is not there: a misspelt one would be no tolerance at all."""
        unknown = sorted(set(self.outputs) - set(known))
        if unknown:
            todo = "name outputs as the log does: fenced-lab log info"
            raise LogRefused(
                LogRefusal.TOLERANCES, f"output.{unknown[0]}", expected=f"one of {', '.join(known)}",
                found="no such output", todo=todo,
            )  # fmt: skip


def _tolerance(table: Mapping[str, object], where: str) -> Tolerance:
    numbers = {}
    for key, value in table.items():
        if key not in ("absolute", "relative"):
            raise ValueError(f"unknown key {where}.{key}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{where}.{key} is {value!r}")
        numbers[key] = float(value)
    return Tolerance(**numbers)


@dataclass(frozen=True)
class Difference:
    """One frame whose outputs differ: the output that is furthest off, and by how much."""

    sequence: int
    output: str
    absolute: float
    within: bool
    model: str = ""


@dataclass
class OutputSummary:
    """One output over all frames: the largest and the mean of each frame's largest |a - b|, and frames outside."""

    largest: float = 0.0
    mean: float = 0.0
    outside: int = 0
    frames: int = 0

    def add(self, distance: float, *, within: bool) -> None:
        """One more frame."""
        self.largest = max(self.largest, distance)
        if math.isfinite(self.mean):  # once infinitely far off it stays that, and is no NaN
            self.mean += (distance - self.mean) / (self.frames + 1)
        self.outside += not within
        self.frames += 1

    def merge(self, other: OutputSummary) -> None:
        """The frames of another replay too."""
        frames = self.frames + other.frames
        self.largest = max(self.largest, other.largest)
        self.mean = (self.mean * self.frames + other.mean * other.frames) / frames if frames else 0.0
        self.outside, self.frames = self.outside + other.outside, frames


@dataclass
class Comparison:
    """Frames compared: `equal` in every bit, `within` tolerance, `mismatched`. `series`: each output's largest |a - b|
    of every frame, in order, beside its `sequences`; `outside`: whether that is more than is allowed.
    """

    tolerances: Tolerances = field(default_factory=Tolerances)
    equal: int = 0
    within: int = 0
    mismatched: int = 0
    outputs: dict[str, OutputSummary] = field(default_factory=dict)
    worst: list[Difference] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    outside: dict[str, list[bool]] = field(default_factory=dict)
    values: dict[Difference, tuple[Arrays, Arrays]] = field(default_factory=dict)
    """What the worst frames gave, and what was wanted; not for JSON."""

    @property
    def compared(self) -> int:
        """Frames in all."""
        return self.equal + self.within + self.mismatched

    def add(self, sequence: int, found: Arrays, wanted: Arrays, model: str = "") -> Difference | None:
        """Compare one frame; what differs most, or None where every bit is equal."""
        self.sequences.append(sequence)
        names = list(dict.fromkeys((*wanted, *found)))
        distances = {name: self._distance(name, found.get(name), wanted.get(name)) for name in names}
        for name, (distance, within, _) in distances.items():
            self.outputs.setdefault(name, OutputSummary()).add(distance, within=within)
            self.series.setdefault(name, []).append(distance)
            self.outside.setdefault(name, []).append(not within)
        if all(same for _, _, same in distances.values()):
            self.equal += 1
            return None
        name = max(distances, key=lambda one: (not distances[one][1], distances[one][0]))
        within = all(within for _, within, _ in distances.values())
        difference = Difference(sequence, name, distances[name][0], within, model)
        self.within += difference.within
        self.mismatched += not difference.within
        kept = sorted([*self.worst, difference], key=lambda one: (one.within, -one.absolute))
        self.worst = kept[:KEPT_WORST]
        self.values = {one: (found, wanted) if one is difference else self.values[one] for one in self.worst}
        return difference

    def _distance(self, name: str, found: NDArray[Any] | None, wanted: NDArray[Any] | None) -> tuple[float, bool, bool]:
        """The largest |a - b|, whether that is within tolerance, and whether every bit is equal."""
        if found is None or wanted is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
            return math.inf, False, False
        if found.tobytes() == wanted.tobytes():
            return 0.0, True, True
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        alike = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            distance = np.where(alike, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
        tolerance = self.tolerances.of(name)
        within = tolerance.allows(distance, np.nan_to_num(b)) and tolerance != EXACT
        return float(distance.max(initial=0.0)), within, False

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        tree = asdict(replace(self, values={}))
        del tree["values"]
        named = {name: asdict(one) for name, one in self.tolerances.outputs.items()}
        tree["tolerances"] = {"default": asdict(self.tolerances.default), "output": named}
        return tree


def arrays_of(views: Sequence[OutputView], data: bytes) -> dict[str, NDArray[Any]]:
    """Logged outputs by name, each in its shape (bfloat16 as float32). Raises LogRefused where the bytes do not fit."""
    size_bytes = sum(view.size_bytes for view in views)
    if size_bytes != len(data):
        raise LogRefused(
            LogRefusal.FORMAT, "logged outputs", expected=f"{size_bytes} bytes, as the layout says",
            found=f"{len(data)} bytes", todo="do not use this log; record it again",
        )  # fmt: skip
    found, offset = {}, 0
    for view in views:
        dtype = np.dtype(_FLAT[view.dtype])
        flat = np.frombuffer(data, dtype, view.size_bytes // dtype.itemsize, offset)
        offset += view.size_bytes
        found[view.name] = values_of(view, flat).reshape(view.shape)
    return found


def values_of(view: OutputView, array: NDArray[Any]) -> NDArray[Any]:
    """The numbers of an output: numpy has no bfloat16, whose bits become float32, exactly."""
    if view.dtype is not DType.BFLOAT16:
        return array
    return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
