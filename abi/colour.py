"""The vocabulary of a frame: how its code values stand for light, and which clock dates it.

Each enum equals the one of the same name in `frame.capnp`, ordinal by ordinal (a test holds that); the schema's
comments give the standards. UNSPECIFIED exists so that a field that was left out can be refused by name.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CfaOrder", "ChromaSite", "ClockId", "Matrix", "Primaries", "Range", "TimeMark", "Transfer"]


class Range(IntEnum):
    """Which code values carry black and white (ITU-R BT.709-6 §4.6)."""

    UNSPECIFIED = 0
    LIMITED = 1
    FULL = 2


class Matrix(IntEnum):
    """How luma and colour difference are made from R'G'B' (ITU-T H.273 MatrixCoefficients)."""

    UNSPECIFIED = 0
    IDENTITY = 1
    BT601 = 2
    BT709 = 3
    BT2020NC = 4


class Primaries(IntEnum):
    """The chromaticities of R, G, B and white (ITU-T H.273 ColourPrimaries)."""

    UNSPECIFIED = 0
    BT709 = 1
    BT601_LINE525 = 2
    BT601_LINE625 = 3
    BT2020 = 4
    SENSOR_NATIVE = 5


class Transfer(IntEnum):
    """From light to code value (ITU-T H.273 TransferCharacteristics)."""

    UNSPECIFIED = 0
    LINEAR = 1
    SRGB = 2
    BT709 = 3
    PQ = 4
    HLG = 5


class ChromaSite(IntEnum):
    """Where a chroma sample lies among the luma samples it covers."""

    UNSPECIFIED = 0
    NOT_SUBSAMPLED = 1
    LEFT = 2
    CENTER = 3
    TOP_LEFT = 4


class CfaOrder(IntEnum):
    """The colours of the top left 2x2 of a Bayer mosaic, row by row."""

    UNSPECIFIED = 0
    NONE = 1
    RGGB = 2
    GRBG = 3
    GBRG = 4
    BGGR = 5


class ClockId(IntEnum):
    """The clock of a stream's times; the names follow clock_gettime(2)."""

    UNSPECIFIED = 0
    MONOTONIC = 1
    BOOTTIME = 2
    REALTIME = 3
    TAI = 4


class TimeMark(IntEnum):
    """What instant `sof_ns` marks."""

    UNSPECIFIED = 0
    EXPOSURE_START = 1
    EXPOSURE_END = 2
    READOUT_START = 3
