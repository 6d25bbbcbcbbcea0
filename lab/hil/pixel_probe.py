"""Pixel probes: compiled models that give back the last corner of their picture, so that a wrong byte shows.

Each is one camera's way of laying out and colouring a picture, as users reported it; its output `values` is float32
[1, channels, SIDE, SIDE], the last SIDE x SIDE pixels as R'G'B' (or grey) on the scale of the code values. A wrong
stride, plane offset, chroma size, range or matrix cannot give the predicted values.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import onnx
from onnx import TensorProto, helper

from abi.stream_format import StreamFormat
from lab.compile.compiler import compile_spec
from lab.compile.spec_toml import load_spec
from lab.hil.probe_lab import ProbeLab
from lab.hil.served import as_camera

__all__ = ["FULL_709", "LIMITED_601", "LIMITED_709", "PICTURES", "SIDE", "Picture", "PixelProbe", "build"]

SIDE: Final = 8  # pixels of the corner that a probe looks at
LIMITED_709, FULL_709, LIMITED_601 = "odd", "tall", "small"
_CPU: Final = {"x86_64": "x86_64_v3", "aarch64": "generic"}


@dataclass(frozen=True)
class Picture:
    """A camera's picture and how it is declared. `more`: further lines of the spec's input, as `stride = 1920`."""

    format: str
    width: int
    height: int
    range: str = "limited"
    matrix: str = "bt709"
    more: str = ""

    @property
    def channels(self) -> int:
        """Of the probe's output."""
        return 1 if self.format == "R8" else 3

    def spec(self, name: str) -> str:
        """The spec.toml of the probe `name`, whose stream has the same name."""
        site = "notSubsampled" if self.format == "R8" else "left"
        machine = platform.machine()
        return f"""[model]
name = "{name}"
version = "1.0.0"
source = "corner.onnx"
release = 1

[target]
driver = "cpu"
arch = "{machine}"
cpu = "{_CPU[machine]}"
threads = 2

[[input]]
name = "image"
stream = "{name}"
{self.more}
format = "{self.format}"
width = {self.width}
height = {self.height}
range = "{self.range}"
matrix = "{self.matrix}"
primaries = "bt709"
transfer = "bt709"
chroma_site = "{site}"
crop = [{self.width - SIDE}, {self.height - SIDE}, {SIDE}, {SIDE}]
resize = [{SIDE}, {SIDE}]
mean = {[0] * self.channels}
std = {[1] * self.channels}

[[output]]
tensor = "result"
name = "values"
unit = "1"
nan = "refuse"

[check]
steps = 2
onnxruntime_tolerance = 1e-3
"""


PICTURES: Final[Mapping[str, Picture]] = MappingProxyType(
    {
        "padded": Picture("NV21", 1280, 1080, more="stride = 1920"),
        "grey": Picture("R8", 1944, 2592, "full", "identity", 'stride = 1952\ncfa = "none"'),
        LIMITED_601: Picture("NV12", 720, 576, matrix="bt601", more="stride = [768, 768]"),
        FULL_709: Picture("NV12", 1928, 1208, "full", more="rows = 1216"),
        LIMITED_709: Picture("NV12", 321, 241),
    }
)


@dataclass(frozen=True)
class PixelProbe:
    """A compiled and signed probe. `format`: of its stream, as a camera declares it."""

    name: str
    picture: Picture
    bundle: Path
    format: StreamFormat


def build(folder: Path, lab: ProbeLab, pictures: Mapping[str, Picture] = PICTURES) -> dict[str, PixelProbe]:
    """Compile a probe for every picture below `folder`, and have `lab` sign it; by name. About a second each."""
    probes = {}
    for name, picture in pictures.items():
        place = folder / name
        place.mkdir(parents=True)
        onnx.save(_corner(picture.channels), str(place / "corner.onnx"))
        spec = place / "spec.toml"
        spec.write_text(picture.spec(name))
        bundle = lab.folder / f"{name}.fenced"
        compile_spec(spec, bundle)
        lab.sign(bundle)
        probes[name] = PixelProbe(name, picture, bundle, as_camera(load_spec(spec).inputs[0].stream_format))
    return probes


def _corner(channels: int) -> onnx.ModelProto:
    """The identity, for values that are never below zero."""
    shape = [1, channels, SIDE, SIDE]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("image", "result")]
    keep = helper.make_node("Relu", ["image"], ["result"], name="keep")
    graph = helper.make_graph([keep], "corner", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
