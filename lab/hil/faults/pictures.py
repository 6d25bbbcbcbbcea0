"""Pictures laid out and coloured as in the field, through compiled models: outputs are predicted to the last pixel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abi.colour import Range
from abi.packet import RefusalCode
from client.errors import Refused
from lab.hil.bench import Bench, Need
from lab.hil.faults.fault import Fault
from lab.hil.pixel_bench import Planes, flat
from lab.hil.pixel_probe import FULL_709, LIMITED_601, LIMITED_709, PICTURES, SIDE, Picture
from lab.hil.verdict import WrongAnswer, expect

__all__ = ["FAULTS"]

ROUNDING = 1e-3  # of a code value
KR_KB = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}  # BT.601-7 §2.5.1, BT.709-6 §3.2
RAMP = np.array([16, 48, 80, 112, 144, 176, 208, 235])
# R, G, B, C, M, Y at 100 %, as BT.601-7 codes them in limited range: Y', Cb, Cr
BARS = ((81, 90, 240), (145, 54, 34), (41, 240, 110), (170, 166, 16), (106, 202, 222), (210, 16, 146))


def by_the_standard(y: Any, cb: Any, cr: Any, picture: Picture) -> NDArray[np.float64]:
    """E'R, E'G, E'B of BT.709-6 §3 (BT.601-7 §2.5) from quantised values, clamped, times 255: float64 [3, ...]."""
    kr, kb = KR_KB[picture.matrix]
    ey, scale = ((y - 16) / 219, 224) if picture.range == "limited" else (y / 255, 255)
    ecb, ecr = (cb - 128) / scale, (cr - 128) / scale
    red, blue = ey + 2 * (1 - kr) * ecr, ey + 2 * (1 - kb) * ecb
    green = (ey - kr * red - kb * blue) / (1 - kr - kb)
    return np.asarray(np.clip(np.stack((red, green, blue)), 0, 1) * 255, np.float64)


def require_equal(what: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Raises WrongAnswer where an element is off by more than rounding."""
    worst = float(np.abs(found - expected).max())
    if not worst <= ROUNDING:
        raise WrongAnswer(what, f"within {ROUNDING} of the prediction", f"off by {worst:.3f}")


def corner(plane: NDArray[np.uint8], picture: Picture, columns: int = 1, rows: int = 1) -> NDArray[np.int64]:
    """The samples of the picture's last SIDE x SIDE pixels; `columns` x `rows` pixels share one."""
    x, y = picture.width - SIDE + np.arange(SIDE), picture.height - SIDE + np.arange(SIDE)
    return plane[(y // rows)[:, None], (x // columns)[None, :]].astype(np.int64)


def last_pixels(name: str) -> Fault:
    """The injection of a noisy picture in the layout of one probe."""
    picture = PICTURES[name]

    def inject(bench: Bench) -> str:
        kept: list[NDArray[np.uint8]] = []

        def paint(planes: Planes) -> None:
            for index, plane in enumerate(planes):
                plane[:] = np.random.default_rng(index).integers(0, 256, plane.shape, dtype=np.uint8)
                kept.append(plane.copy())

        found = bench.pixels.values(name, paint)
        if picture.format == "R8":
            require_equal("last pixels", found[0], corner(kept[0], picture))
        else:
            first, second = (corner(kept[1][:, start::2], picture, 2, 2) for start in (0, 1))
            cb, cr = (second, first) if picture.format == "NV21" else (first, second)
            require_equal("last pixels", found, by_the_standard(corner(kept[0], picture), cb, cr, picture))
        return f"the last {SIDE} x {SIDE} pixels of {picture.width} x {picture.height} {picture.format} as predicted"

    row, title, answer = LAYOUTS[name]
    return Fault(row, title, answer, Need.OWN, inject)


LAYOUTS = {
    "padded": ("frames/1", "padded lines read as tight", "image correct to the last column"),
    "grey": ("frames/2", "garbled copy from odd stride", "image correct"),
    LIMITED_601: ("frames/4", "chroma size computed from width, not stride", "image correct"),
    FULL_709: ("frames/6", "wrong UV start", "UV taken from the declared offset"),
    LIMITED_709: ("frames/19", "last chroma row or column missing", "output right at the last pixel"),
}


def ranges(bench: Bench) -> str:
    """One grey ramp declared limited and full, then a stream of another range than the model's."""
    limited, full = (bench.pixels.values(name, flat(RAMP, 128, 128)) for name in (LIMITED_709, FULL_709))
    require_equal("ramp as limited", limited, np.broadcast_to((RAMP - 16) * 255 / 219, limited.shape))
    require_equal("ramp as full", full, np.broadcast_to(RAMP, full.shape))
    try:
        probe = bench.pixels.probes[LIMITED_709]
        bench.pixels.clients.camera(LIMITED_709, format=replace(probe.format, range=Range.FULL)).close()
    except Refused as refused:
        expect(
            "refusal of the other range", (refused.code, refused.what), (RefusalCode.FORMAT_MISMATCH, "format.range")
        )
        return f"two predicted ramps; {refused}"
    raise WrongAnswer("a stream of another range than the model's", "a refusal", "an open stream")


def grey(bench: Bench) -> str:
    """Y = U = V = 128 in full range."""
    found = bench.pixels.values(FULL_709, flat(128, 128, 128))
    require_equal("grey", found, np.full(found.shape, 128.0))
    return "R'G'B' 128, 128, 128"


def bars(bench: Bench) -> str:
    """Saturated bars, the same bytes under both matrices."""
    apart = 0.0
    for y, cb, cr in BARS:
        found = {}
        for name in (LIMITED_601, LIMITED_709):
            values = bench.pixels.values(name, flat(y, cb, cr))
            codes = (np.float64(y), np.float64(cb), np.float64(cr))
            require_equal("bar", values, by_the_standard(*codes, PICTURES[name])[:, None, None])
            found[name] = values[:, 0, 0]
        apart = max(apart, float(np.abs(found[LIMITED_601] - found[LIMITED_709]).max()))
    if apart <= 10:
        raise WrongAnswer("the two matrices", "outputs that differ", f"at most {apart:.1f} codes apart")
    return f"{len(BARS)} bars as predicted by both matrices, up to {apart:.0f} codes apart"


FAULTS = (
    *(last_pixels(name) for name in LAYOUTS),
    Fault("frames/7", "limited read as full", "two predicted outputs; another range than the model's is refused",
          Need.OWN, ranges),
    Fault("frames/8", "magenta cast", "R'G'B' 128, 128, 128", Need.OWN, grey),
    Fault("frames/9", "bt601 decoded as bt709", "two different, exactly predicted outputs", Need.OWN, bars),
)  # fmt: skip
