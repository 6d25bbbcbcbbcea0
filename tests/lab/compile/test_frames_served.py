"""Frames laid out and coloured as in the field, through compiled bundles and the daemon: outputs exactly predicted.

Each bundle gives back the last columns and rows of its picture as R'G'B' (or grey) values, so that a wrong stride,
plane offset, chroma size, range or matrix shows. Row numbers are those of cases/frames.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper

from abi.colour import ClockId, Range, TimeMark
from abi.packet import RefusalCode
from abi.stream_format import StreamFormat
from client.errors import Refused
from lab.compile.compiler import compile_spec
from lab.compile.spec_toml import load_spec
from lab.sign.sign import sign_bundle
from lab.sign.throwaway import sign_throwaway
from tests.lab.compile.test_compile_formats import rgb_by_the_standard
from tests.lab.compile.tiny_models import tiny_model, write_spec
from tests.support.daemons import LIMIT_S, DaemonThread, submit

SIDE = 8  # of the corner that a bundle looks at
ROUNDING = 1e-3  # of a code value


@dataclass(frozen=True)
class Picture:
    """A camera's picture and how it is declared. `more`: further lines of the spec's input."""

    format: str
    width: int
    height: int
    range: str = "limited"
    matrix: str = "bt709"
    more: str = ""

    def edits(self, name: str) -> dict[str, str]:
        """The spec of a bundle `name` that gives the picture's last corner back, from a stream of the same name."""
        corner = f"[{self.width - SIDE}, {self.height - SIDE}, {SIDE}, {SIDE}]"
        is_grey = self.format == "R8"
        return {
            'name = "tiny"': f'name = "{name}"', 'stream = "road"': f'stream = "{name}"\n{self.more}',
            'format = "NV12"': f'format = "{self.format}"',
            "width = 33": f"width = {self.width}", "height = 21": f"height = {self.height}",
            'range = "limited"': f'range = "{self.range}"', 'matrix = "bt709"': f'matrix = "{self.matrix}"',
            'chroma_site = "left"': f'chroma_site = "{"notSubsampled" if is_grey else "left"}"',
            "crop = [1, 2, 31, 18]": f"crop = {corner}", "resize = [16, 12]": f"resize = [{SIDE}, {SIDE}]",
            "mean = [10.0, 20.0, 30.0]": f"mean = {[0] * self.channels}",
            "std = [100.0, 110.0, 120.0]": f"std = {[1] * self.channels}",
            '[[output]]\ntensor = "result"\nname = "offset_m"\nslice = [0, 1]\nunit = "m"\nnan = "refuse"\n': "",
            'name = "rest"\nslice = [1, 6]\nunit = "1"\nnan = "flag"': 'name = "values"\nunit = "1"\nnan = "refuse"',
            "[check]": "[check]\nsteps = 2",
        }  # fmt: skip

    @property
    def channels(self) -> int:
        """Of the bundle's output."""
        return 1 if self.format == "R8" else 3


PICTURES = {
    "row1": Picture("NV21", 1280, 1080, more="stride = 1920"),
    "row2": Picture("R8", 1944, 2592, "full", "identity", 'stride = 1952\ncfa = "none"'),
    "row4": Picture("NV12", 720, 576, matrix="bt601", more="stride = [768, 768]"),
    "row6": Picture("NV12", 1928, 1208, "full", more="rows = 1216"),
    "row19": Picture("NV12", 321, 241),
}


LIMITED_709, FULL_709, LIMITED_601 = "row19", "row6", "row4"


@dataclass
class Served:
    """A daemon that serves every bundle, and each stream's format as a camera declares it."""

    daemon: DaemonThread
    formats: dict[str, StreamFormat]

    def values(self, name: str, fill: Callable[[tuple[NDArray[np.uint8], ...]], None]) -> NDArray[Any]:
        """The output for one frame that `fill` writes into its planes; padding is noise."""
        pixels = np.random.default_rng(1).integers(0, 256, self.formats[name].buffer_bytes, dtype=np.uint8)
        with (
            self.daemon.camera(name, format=self.formats[name]) as camera,
            self.daemon.consumer(name) as consumer,
        ):
            frame = camera.acquire()
            frame.pixels[:] = pixels
            fill(frame.planes)
            written = frame.pixels.copy()
            camera.discard(frame)
            submit(camera, 1, written)
            return consumer.recv(timeout_s=LIMIT_S).outputs["values"][0]


@dataclass(frozen=True)
class _Lab:
    """What the daemon's configuration needs to know of who signs."""

    root_path: Path
    folder: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    bundles, formats, root = [], {}, None
    for name, picture in PICTURES.items():
        place = folder / name
        place.mkdir()
        shape = [1, picture.channels, SIDE, SIDE]
        relu = [helper.make_node("Relu", ["image"], ["result"], name="keep")]  # no value is below zero
        spec = write_spec(place, tiny_model(relu, [], input_shape=shape, output_shape=shape), picture.edits(name))
        bundle = place / f"{name}.fenced"
        compile_spec(spec, bundle)
        if root is None:
            root = sign_throwaway(bundle, folder)
        else:
            for role in ("build", "release"):
                sign_bundle(bundle, folder / "keys" / role, role)
        bundle.chmod(0o644)
        bundles.append(bundle)
        formats[name] = replace(load_spec(spec).inputs[0].stream_format, clock=ClockId.MONOTONIC,
                                mark=TimeMark.EXPOSURE_START, period_ns=50_000_000, camera_name="field")  # fmt: skip
    assert root is not None
    with DaemonThread(folder, bundles, _Lab(root, folder)) as daemon:  # type: ignore[arg-type]
        yield Served(daemon, formats)


def corner(plane: NDArray[np.uint8], picture: Picture, columns: int = 1, rows: int = 1) -> NDArray[np.int64]:
    """The samples of the picture's last 8x8 pixels; `columns` x `rows` pixels share one."""
    x, y = picture.width - SIDE + np.arange(SIDE), picture.height - SIDE + np.arange(SIDE)
    return plane[(y // rows)[:, None], (x // columns)[None, :]].astype(np.int64)


@pytest.mark.parametrize("name", ["row1", "row4", "row6", "row19"])
def test_the_last_pixels_are_right_whatever_the_layout(served: Served, name: str) -> None:
    picture, kept = PICTURES[name], []

    def fill(planes: tuple[NDArray[np.uint8], ...]) -> None:
        for index, plane in enumerate(planes):
            plane[:] = np.random.default_rng(index).integers(0, 256, plane.shape, dtype=np.uint8)
            kept.append(plane.copy())

    found = served.values(name, fill)
    luma, chroma = kept
    first, second = (corner(chroma[:, start::2], picture, 2, 2) for start in (0, 1))
    cb, cr = (second, first) if picture.format == "NV21" else (first, second)
    limited = picture.range == "limited"
    expected = rgb_by_the_standard(corner(luma, picture), cb, cr, limited=limited, matrix=picture.matrix)
    assert np.abs(found - expected).max() < ROUNDING


def test_an_odd_stride_garbles_nothing(served: Served) -> None:  # row 2
    kept = []

    def fill(planes: tuple[NDArray[np.uint8], ...]) -> None:
        planes[0][:] = np.random.default_rng(2).integers(0, 256, planes[0].shape, dtype=np.uint8)
        kept.append(planes[0].copy())

    found = served.values("row2", fill)
    assert np.array_equal(found[0], corner(kept[0], PICTURES["row2"]).astype(np.float32))


def painted(y: Any, cb: int, cr: int) -> Callable[[tuple[NDArray[np.uint8], ...]], None]:
    """A picture whose last columns are luma `y` and whose chroma is flat."""

    def fill(planes: tuple[NDArray[np.uint8], ...]) -> None:
        planes[0][:, -SIDE:] = y
        planes[1][:, 0::2], planes[1][:, 1::2] = cb, cr

    return fill


def test_a_grey_ramp_read_as_limited_and_as_full_gives_two_predicted_outputs(served: Served) -> None:  # row 7
    ramp = np.array([16, 48, 80, 112, 144, 176, 208, 235])
    limited, full = (served.values(name, painted(ramp, 128, 128)) for name in (LIMITED_709, FULL_709))
    assert np.abs(limited - (ramp - 16) * 255 / 219).max() < ROUNDING
    assert np.array_equal(full, np.broadcast_to(ramp, (3, SIDE, SIDE)).astype(np.float32))


def test_a_stream_of_another_range_than_the_models_is_refused(served: Served) -> None:  # row 7
    with pytest.raises(Refused) as refused:
        served.daemon.camera(LIMITED_709, format=replace(served.formats[LIMITED_709], range=Range.FULL))
    assert refused.value.code is RefusalCode.FORMAT_MISMATCH
    assert (refused.value.what, refused.value.expected, refused.value.found) == ("format.range", "LIMITED", "FULL")


def test_grey_has_no_magenta_cast(served: Served) -> None:  # row 8
    assert np.array_equal(served.values(FULL_709, painted(128, 128, 128)), np.full((3, SIDE, SIDE), 128, np.float32))


# R, G, B, C, M, Y at 100 %, as BT.601-7 codes them in limited range: Y', Cb, Cr
BARS = [(81, 90, 240), (145, 54, 34), (41, 240, 110), (170, 166, 16), (106, 202, 222), (210, 16, 146)]


@pytest.mark.parametrize("bar", BARS)
def test_a_saturated_bar_by_both_matrices_gives_two_predicted_outputs(
    served: Served, bar: tuple[int, int, int]
) -> None:  # row 9
    found = {}
    for name, matrix in ((LIMITED_601, "bt601"), (LIMITED_709, "bt709")):
        values = served.values(name, painted(*bar))
        expected = rgb_by_the_standard(*map(np.float64, bar), limited=True, matrix=matrix)
        assert np.abs(values - expected[:, None, None]).max() < ROUNDING
        found[matrix] = values[:, 0, 0]
    assert set(np.round(found["bt601"] / 255)) <= {0, 1}
    assert np.abs(found["bt601"] - 255 * np.round(found["bt601"] / 255)).max() < 1.5  # the bar it was made as
    assert np.abs(found["bt601"] - found["bt709"]).max() > 10
