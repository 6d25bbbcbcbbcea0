"""ROS 2 bags, MCAP or sqlite3: the pictures of one topic of `sensor_msgs/Image` or `sensor_msgs/CompressedImage`.

A message's header stamp is the frame's time; which clock that is, and which part of the exposure it marks, only the
driver's author knows, so both have to be stated. So do range, primaries and transfer of raw images: `encoding` is
silent about them. When the bag took the message becomes the log's time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import apsw  # what rosbags reads .db3 files with
import numpy as np
from numpy.typing import NDArray
from rosbags.highlevel import AnyReader, AnyReaderError
from rosbags.rosbag2 import ReaderError
from rosbags.serde import SerdeError
from rosbags.typesys import Stores, get_typestore

from abi.colour import CfaOrder
from lab.replay.importers.contract import Stated
from lab.replay.importers.samples import Family, Samples
from lab.replay.importers.video import decode_still
from lab.replay.importers.write import Picture, Source
from lab.replay.refusal import LogRefusal, LogRefused

__all__ = ["rosbag_source"]

_DAMAGE = (AnyReaderError, ReaderError, SerdeError, apsw.Error, struct.error, IndexError)

IMAGE, COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
NS_PER_S: Final = 1_000_000_000

# sensor_msgs/image_encodings.hpp: family, bytes a pixel, and where R, G and B lie.
_RGB: Final = {"rgb8": (3, (0, 1, 2)), "bgr8": (3, (2, 1, 0)), "rgba8": (4, (0, 1, 2)), "bgra8": (4, (2, 1, 0))}
_YUV: Final = {"yuv422": (1, 0, 2), "uyvy": (1, 0, 2), "yuv422_yuy2": (0, 1, 3), "yuyv": (0, 1, 3)}
"""Of a four-byte pair of pixels: the first Y, Cb, Cr; the second Y lies two bytes behind the first."""
_MOSAICS: Final = {
    "rggb": CfaOrder.RGGB, "grbg": CfaOrder.GRBG, "gbrg": CfaOrder.GBRG, "bggr": CfaOrder.BGGR,
}  # fmt: skip


def rosbag_source(path: Path, topic: str | None) -> Source:
    """The pictures of `topic`, or of the only topic with pictures. Raises LogRefused."""
    with _opened(path) as reader:
        known = {one.topic: one for one in reader.connections if one.msgtype in (IMAGE, COMPRESSED)}
        name = topic or (next(iter(known)) if len(known) == 1 else "")
        if name not in known:
            raise LogRefused(
                LogRefusal.SOURCE, f"{path.name}: which pictures?", expected="--topic, one with sensor_msgs images",
                found=f"{topic or 'none named'}; the bag has {', '.join(sorted(known)) or 'none'}",
                todo="name one of the bag's topics with pictures",
            )  # fmt: skip
        count = sum(one.msgcount for one in reader.connections if one.topic == name)
        lasts_ns = reader.duration
    period_ns = round(lasts_ns / (count - 1)) if count > 1 else 0
    told: dict[str, Stated] = {}
    return Source(f"{path.name} {name}", _pictures(path, name, told), lambda first: told, period_ns, count)


@contextmanager
def _opened(path: Path) -> Iterator[AnyReader]:
    """A bag while the context lasts. Raises LogRefused where it, or what is read from it, is damaged."""
    try:
        with AnyReader([path], default_typestore=get_typestore(Stores.ROS2_HUMBLE)) as reader:
            yield reader
    except (FileNotFoundError, *_DAMAGE) as error:  # a folder without metadata.yaml, among others
        raise LogRefused(
            LogRefusal.SOURCE, f"{path} could not be read", expected="a ROS 2 bag: its folder, MCAP or sqlite3",
            found=str(error), todo="check the path; a bag without metadata.yaml needs `ros2 bag reindex`",
        ) from error  # fmt: skip


def _pictures(path: Path, topic: str, told: dict[str, Stated]) -> Iterator[Picture]:
    with _opened(path) as reader:
        wanted = [one for one in reader.connections if one.topic == topic]
        for index, (connection, at_ns, data) in enumerate(reader.messages(wanted)):
            message: Any = reader.deserialize(data, connection.msgtype)
            what = f"message {index} of {topic}"
            if connection.msgtype == COMPRESSED:
                samples, stated = decode_still(bytes(message.data), f"{what} ({message.format})")
            else:
                samples, stated = image_samples(message, what)
            if not index:
                told.update(stated)
            stamp_ns = message.header.stamp.sec * NS_PER_S + message.header.stamp.nanosec
            yield Picture(samples, index + 1, stamp_ns, stamp_ns, at_ns, what)


def image_samples(message: Any, what: str) -> tuple[Samples, Mapping[str, Stated]]:
    """The samples of a `sensor_msgs/Image`, and what its encoding states. Raises LogRefused."""
    encoding, by = str(message.encoding).lower(), f"the encoding, {message.encoding}"
    rows, columns, step = int(message.height), int(message.width), int(message.step)
    if encoding in _RGB:
        depth, order = _RGB[encoding]
        picture = _bytes(message, what, columns * depth).reshape(rows, columns, depth)
        return Samples(Family.RGB, (picture[:, :, list(order)],)), {}
    if encoding in _YUV:
        first, blue, red = _YUV[encoding]
        pairs = _bytes(message, what, -(-columns // 2) * 4).reshape(rows, -1, 4)
        luma = np.stack([pairs[:, :, first], pairs[:, :, first + 2]], axis=2).reshape(rows, -1)[:, :columns]
        return Samples(Family.YUV422, (luma, pairs[:, :, blue], pairs[:, :, red])), {}
    kind, _, order_name = encoding.partition("_")
    mosaic = order_name[:4] if kind == "bayer" else ""
    bits = encoding.removeprefix(f"bayer_{mosaic}" if mosaic else "mono")
    if bits not in ("8", "16") or (mosaic and mosaic not in _MOSAICS):
        raise LogRefused(
            LogRefusal.PICTURES, what, found=f"encoding {message.encoding!r}",
            expected=f"one of {', '.join((*_RGB, *_YUV, 'mono8', 'mono16', 'bayer_ORDER8', 'bayer_ORDER16'))}",
            todo="publish an encoding that says what its channels are; 8UC3 and its like do not",
        )  # fmt: skip
    cfa = {"cfa": Stated(_MOSAICS[mosaic] if mosaic else CfaOrder.NONE, by)}
    flat = _bytes(message, what, columns * int(bits) // 8)
    if bits == "8":
        return Samples(Family.MONO8, (flat,)), cfa
    assert step >= 2 * columns
    wide = np.ascontiguousarray(flat).view(">u2" if message.is_bigendian else "<u2")
    return Samples(Family.MONO16, (wide,)), cfa


def _bytes(message: Any, what: str, row_bytes: int) -> NDArray[np.uint8]:
    """uint8 [rows, row_bytes], without what `step` adds. Raises LogRefused where the message holds less."""
    rows, step, data = int(message.height), int(message.step), np.asarray(message.data, np.uint8)
    if step < row_bytes or data.size < rows * step or not rows or not row_bytes:
        raise LogRefused(
            LogRefusal.PICTURES, what, expected=f"{rows} rows of at least {row_bytes} bytes",
            found=f"{data.size} bytes with a step of {step}", todo="mend the node that published it",
        )  # fmt: skip
    return data[: rows * step].reshape(rows, step)[:, :row_bytes]
