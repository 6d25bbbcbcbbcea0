"""The pixel contract of an imported drive: what its file states, what the person states, and nothing in between.

A log needs a complete StreamFormat. Some of it a source states itself (an H.264 stream its range, a JPEG its matrix),
some of it nobody wrote down. Whatever is left is refused with the flag that has to be given; what is said twice and
differently is refused too. Who said what goes into the log beside the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from abi.colour import CfaOrder, ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.format import make_format, validate
from abi.pixels import PIXEL_FORMATS, ColourModel
from abi.stream_format import FormatError, StreamFormat
from lab.replay.refusal import LogRefusal, LogRefused

__all__ = ["COLOUR_FIELDS", "Flags", "Stated", "settle", "spelled"]

COLOUR_FIELDS: Final[dict[str, type[IntEnum]]] = {
    "range": Range, "matrix": Matrix, "primaries": Primaries, "transfer": Transfer, "chroma_site": ChromaSite,
    "cfa": CfaOrder, "clock": ClockId, "mark": TimeMark,
}  # fmt: skip
"""What can be stated of a stream besides its layout; `--chroma-site` on the command line, and so on."""

PERSON = "the command line"


@dataclass(frozen=True)
class Stated:
    """A value of a field, and who states it: `the stream's VUI`, `ITU-T T.871`."""

    value: IntEnum
    by: str


@dataclass(frozen=True)
class Flags:
    """What the person states: the stream's name, fields by name, and where wanted a layout or a spec's whole format."""

    stream: str
    fields: Mapping[str, IntEnum] = field(default_factory=dict)
    format: str = ""
    """A name of the ABI's table; empty: the source's own layout."""
    contract: StreamFormat | None = None
    """What a model was compiled for: every field of it counts as stated by the spec."""
    period_ns: int = 0
    """0: as the source says."""


def spelled(value: IntEnum) -> str:
    """As the schema and a spec.toml spell it: `bt601Line525`."""
    first, *others = value.name.lower().split("_")
    return first + "".join(map(str.capitalize, others))


def settle(
    flags: Flags, layouts: Sequence[str], size: tuple[int, int], stated: Mapping[str, Stated], period_ns: int
) -> tuple[StreamFormat, dict[str, str]]:
    """The stream's format, and for each field who stated it.

    `layouts`: names of the formats that hold the source's pictures without loss, its own first; `size`: width and
    height in pixels. Raises LogRefused: UNSTATED naming the flag, CONTRADICTION, PICTURES where no layout fits.
    """
    width, height = size
    name = _layout(flags, layouts)
    told = {key: _said(key, name, flags, stated) for key in COLOUR_FIELDS}
    period_ns = flags.period_ns or period_ns
    missing = [key for key, said in told.items() if not said] + ["rate_hz"] * (not period_ns)
    if missing:
        raise _unstated(missing)
    fields = {key: _agreed(key, said) for key, said in told.items()}
    sources = {"format": name, "size": f"{width}x{height}"}
    sources |= {key: f"{spelled(said[0].value)}, stated by {said[0].by}" for key, said in told.items()}
    own: dict[str, Any] = {**fields, "period_ns": period_ns, "camera_name": flags.stream}
    if flags.contract is None:
        return _checked(lambda: make_format(name, width, height, **own)), sources
    wanted = flags.contract
    if (wanted.width, wanted.height) != size:
        raise LogRefused(
            LogRefusal.PICTURES, "pictures of another size than the spec's", expected=f"{wanted.width}x{wanted.height}",
            found=f"{width}x{height}", todo="compile for the size of these pictures; an import never resizes",
        )  # fmt: skip
    mine = {key: own[key] for key in ("clock", "mark", "period_ns", "camera_name")}
    return _checked(lambda: _with(wanted, mine)), sources


def _layout(flags: Flags, layouts: Sequence[str]) -> str:
    wanted = flags.format or (flags.contract.pixel.name if flags.contract else layouts[0])
    if flags.contract is not None and flags.format not in ("", flags.contract.pixel.name):
        raise _contradiction("format", f"{flags.format} by {PERSON}", f"{flags.contract.pixel.name} by the spec")
    if wanted not in layouts:
        raise LogRefused(
            LogRefusal.PICTURES, f"these pictures are not {wanted}", expected=f"--format {' or '.join(layouts)}",
            found=wanted, todo="name one that holds the samples as they are; an import converts no colours",
        )  # fmt: skip
    return wanted


def _implied(name: str) -> dict[str, Stated]:
    """What a layout leaves no choice in."""
    pixel, by = PIXEL_FORMATS[name], f"the layout, {name}"
    found: dict[str, Stated] = {}
    if pixel.model is not ColourModel.YUV:
        found = {"matrix": Stated(Matrix.IDENTITY, by), "chroma_site": Stated(ChromaSite.NOT_SUBSAMPLED, by)}
    if pixel.model is not ColourModel.MONO:
        found["cfa"] = Stated(pixel.cfa, by)
    return found


def _said(key: str, name: str, flags: Flags, stated: Mapping[str, Stated]) -> list[Stated]:
    """Everything that is said of a field: by the layout, the source, the spec, the person."""
    said = [one[key] for one in (_implied(name), stated) if key in one]
    if flags.contract is not None and key not in ("clock", "mark"):
        said.append(Stated(getattr(flags.contract, key), "the spec"))
    if key in flags.fields:
        said.append(Stated(flags.fields[key], PERSON))
    return said


def _agreed(key: str, said: Sequence[Stated]) -> IntEnum:
    for one in said[1:]:
        if one.value != said[0].value:
            texts = [f"{spelled(each.value)} by {each.by}" for each in (said[0], one)]
            raise _contradiction(key.replace("_", " "), *texts)
    return said[0].value


def _with(wanted: StreamFormat, own: Mapping[str, Any]) -> StreamFormat:
    made = replace(wanted, **own)
    validate(made)
    return made


def _checked(make: Callable[[], StreamFormat]) -> StreamFormat:
    try:
        return make()
    except FormatError as error:
        raise LogRefused(
            LogRefusal.CONTRADICTION, f"the format of the stream ({error.field})", expected=error.expected,
            found=error.found, todo=error.action,
        ) from error  # fmt: skip


def _unstated(missing: Sequence[str]) -> LogRefused:
    options = []
    for key in missing:
        values = "RATE" if key == "rate_hz" else "|".join(spelled(one) for one in COLOUR_FIELDS[key] if one)
        options.append(f"--{key.replace('_', '-')} {values}")
    return LogRefused(
        LogRefusal.UNSTATED, f"nothing states {', '.join(key.replace('_', ' ') for key in missing)}",
        expected="; ".join(options), found="neither an option nor the recording that says it",
        todo="ask whoever made the recording, and give these options; nothing is guessed",
    )  # fmt: skip


def _contradiction(what: str, one: str, other: str) -> LogRefused:
    return LogRefused(
        LogRefusal.CONTRADICTION, f"{what} is stated twice, and differently", expected=one, found=other,
        todo="leave out what is wrong, or mend the file that says it",
    )  # fmt: skip
