"""Formats that cameras declare wrongly: refused by field and with both values, and the session goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from abi import messages as m
from abi.colour import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.format import make_format
from abi.packet import RefusalCode
from abi.stream_format import Plane, StreamFormat
from lab.hil.bench import Bench, Need
from lab.hil.faults.fault import Fault
from lab.hil.raw_peer import RawPeer, as_refusal
from lab.hil.verdict import WrongAnswer, expect, expect_in

__all__ = ["FAULTS"]

OWN: dict[str, Any] = {
    "clock": ClockId.MONOTONIC, "mark": TimeMark.EXPOSURE_START, "period_ns": 50_000_000, "camera_name": "raw",
}  # fmt: skip
LUMA = Plane(0, 1280, 720, 921_600)


def nv12(**changes: Any) -> StreamFormat:
    """1280 x 720 NV12, with fields replaced."""
    made = make_format("NV12", 1280, 720, range=Range.LIMITED, matrix=Matrix.BT709, primaries=Primaries.BT709,
                       transfer=Transfer.BT709, chroma_site=ChromaSite.LEFT, **OWN)  # fmt: skip
    return replace(made, **changes)


def packed(name: str, width: int, height: int, **plane: int) -> StreamFormat:
    """A format of one plane, with fields of the plane replaced."""
    made = make_format(name, width, height, range=Range.FULL, matrix=Matrix.IDENTITY, primaries=Primaries.BT709,
                       transfer=Transfer.SRGB, chroma_site=ChromaSite.NOT_SUBSAMPLED, **OWN)  # fmt: skip
    return replace(made, planes=(replace(made.planes[0], **plane),))


@dataclass(frozen=True)
class Declared:
    """A wrong declaration: the field that must be named, and what must stand in `expected` and `found`."""

    format: StreamFormat
    field: str
    expected: str
    found: str


def refused(declarations: Callable[[], Sequence[Declared]]) -> Callable[[Bench], str]:
    """The injection of each declaration in one session, which must then still open a good stream."""

    def inject(bench: Bench) -> str:
        words = []
        with RawPeer(bench.sockets) as peer:
            for declared in declarations():
                refusal = as_refusal(peer.open_unchecked(declared.format, bench.stream))
                expect("code", refusal.code, RefusalCode.BAD_FORMAT)
                if not refusal.what.endswith(declared.field) or not refusal.action:
                    raise WrongAnswer("refusal", f"one of {declared.field}, with what to do", str(refusal))
                expect_in("expected", refusal.expected, [declared.expected])
                expect_in("found", refusal.found, [declared.found])
                words.append(f"{refusal.what}: expected {refusal.expected}, found {refusal.found}")
            opened = peer.ask(m.OpenStream(bench.stream, bench.format))
            if not isinstance(opened, m.StreamOpened):
                raise WrongAnswer("a good format in the same session", "an open stream", str(opened))
        return "; ".join(words)

    return inject


def _wide() -> list[Declared]:
    return [
        Declared(packed("R8", 4096, 16, stride=4128), "planes[0].sizeBytes", "66016", "65536"),
        Declared(packed("R8", 4096, 16, stride=4128, size_bytes=4128 * 16), "planes[0]", "65536", "66048"),
    ]


def _short() -> list[Declared]:
    planes = (LUMA, Plane(921_600, 1280, 360, 460_799))
    return [Declared(nv12(planes=planes), "planes[1].sizeBytes", "460800", "460799")]


def _unspecified() -> list[Declared]:
    fields = {
        "range": ("range", Range.UNSPECIFIED, "LIMITED, FULL"), "matrix": ("matrix", Matrix.UNSPECIFIED, "BT709"),
        "primaries": ("primaries", Primaries.UNSPECIFIED, "BT2020"),
        "transfer": ("transfer", Transfer.UNSPECIFIED, "SRGB"),
        "chromaSite": ("chroma_site", ChromaSite.UNSPECIFIED, "TOP_LEFT"),
        "clock": ("clock", ClockId.UNSPECIFIED, "BOOTTIME"),
    }  # fmt: skip
    return [
        Declared(nv12(**{key: value}), field, expected, "UNSPECIFIED")
        for field, (key, value, expected) in fields.items()
    ]


def _negative() -> list[Declared]:
    planes = (replace(LUMA, stride=-640), nv12().planes[1])
    return [Declared(nv12(planes=planes), "planes[0].stride", "1280..", "-640")]


def _zero() -> list[Declared]:
    return [Declared(packed("BGR24", 1280, 720, stride=0), "planes[0].stride", "3840..", "0")]


def _wrapping() -> list[Declared]:
    return [Declared(replace(packed("ABGR8888", 1, 1), width=1_073_741_825), "width", "32768", "1073741825")]


def _far() -> list[Declared]:
    return [Declared(packed("R8", 40, 25, offset=1 << 40), "planes[0]", "1000 bytes", str(1 << 40))]


def _fault(row: int, title: str, answer: str, declarations: Callable[[], Sequence[Declared]]) -> Fault:
    return Fault(f"frames/{row}", title, answer, Need.SERVING, refused(declarations))


FAULTS = (
    _fault(3, "requested stride differs from the buffer's", "refused: plane exceeds buffer, or size mismatch", _wide),
    _fault(5, "UV view one byte short", "refused, naming plane 1 and both sizes", _short),
    _fault(10, "default colour guessed", "refused: names the field", _unspecified),
    _fault(20, "negative stride reads out of bounds", "refused", _negative),
    _fault(21, "zero stride aborts", "refused", _zero),
    _fault(22, "multiply wraps 32 bits", "refused: size limit", _wrapping),
    _fault(31, "plane offset 2^40 with a 1000-byte buffer", "refused", _far),
)
