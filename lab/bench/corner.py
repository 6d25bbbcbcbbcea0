"""The least model over the largest frame: for benchmarks of everything but kernels.

It takes whole NV12 frames, 1928×1208 unless told, and gives back the 8×8 pixels of their last corner as R'G'B', so that
a run costs microseconds and a wrong byte would show. One bundle for each stream, all signed by one throwaway root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from abi.colour import ChromaSite, ClockId, Matrix, Primaries, Range, TimeMark, Transfer
from abi.format import make_format
from abi.stream_format import StreamFormat
from lab.compile.compiler import compile_spec
from lab.hil.daemon import PATIENT, VEHICLE, DaemonProcess
from lab.sign.sign import sign_bundle
from lab.sign.throwaway import sign_throwaway

WIDTH, HEIGHT, SIDE = 1928, 1208, 8
Size = tuple[int, int]
_SPEC = """
[model]
name = "{name}"
version = "1.0.0"
source = "corner.onnx"
release = 1
[target]
driver = "cpu"
arch = "x86_64"
cpu = "x86_64_v3"
threads = 1
[[input]]
name = "image"
stream = "{name}"
format = "NV12"
width = {width}
height = {height}
range = "limited"
matrix = "bt709"
primaries = "bt709"
transfer = "bt709"
chroma_site = "left"
crop = [{left}, {top}, {side}, {side}]
resize = [{side}, {side}]
mean = [0, 0, 0]
std = [1, 1, 1]
[[output]]
tensor = "corner"
name = "corner"
unit = "1"
nan = "refuse"
[check]
onnxruntime_tolerance = 1e-2
steps = 2
"""


def corner_format(rate_hz: float = 20.0, size: Size = (WIDTH, HEIGHT)) -> StreamFormat:
    """What a camera of these streams declares. `size`: width and height in pixels."""
    return make_format(
        "NV12", *size, range=Range.LIMITED, matrix=Matrix.BT709, primaries=Primaries.BT709,
        transfer=Transfer.BT709, chroma_site=ChromaSite.LEFT, clock=ClockId.MONOTONIC, mark=TimeMark.EXPOSURE_START,
        period_ns=round(1e9 / rate_hz), camera_name="bench",
    )  # fmt: skip


def corner_bundles(folder: Path, streams: Sequence[str] | Mapping[str, Size]) -> tuple[list[Path], Path]:
    """A signed bundle for each stream, of the stream's name, and their root. A mapping gives each stream's size."""
    shape = [1, 3, SIDE, SIDE]
    image, corner = (helper.make_tensor_value_info(one, TensorProto.FLOAT, shape) for one in ("image", "corner"))
    keep = helper.make_node("Relu", ["image"], ["corner"], name="keep")  # no value is below zero
    graph = helper.make_graph([keep], "corner", [image], [corner])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              str(folder / "corner.onnx"))  # fmt: skip
    bundles, root = [], folder / "root.json"
    sizes = streams if isinstance(streams, Mapping) else dict.fromkeys(streams, (WIDTH, HEIGHT))
    for name, (width, height) in sizes.items():
        spec, bundle = folder / f"{name}.toml", folder / f"{name}.fenced"
        place = {"left": width - SIDE, "top": height - SIDE, "side": SIDE}
        spec.write_text(_SPEC.format(name=name, width=width, height=height, **place))
        compile_spec(spec, bundle)
        if not root.exists():
            root = sign_throwaway(bundle, folder)
        else:
            for role in ("build", "release"):
                sign_bundle(bundle, folder / "keys" / role, role)
        bundles.append(bundle)
    return bundles, root


@contextmanager
def served_corners(
    folder: Path, streams: Sequence[str] | Mapping[str, Size], vehicle: Path = VEHICLE
) -> Iterator[DaemonProcess]:
    """A daemon from the vehicle environment that serves one such model for each stream."""
    bundles, root = corner_bundles(folder, streams)
    with DaemonProcess(folder / "daemon", bundles, root, list(streams), limits=PATIENT, vehicle=vehicle) as daemon:
        yield daemon
