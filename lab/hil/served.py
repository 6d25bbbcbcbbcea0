"""What a daemon serves, as a harness needs to know it: each model's streams with their complete formats, and outputs.

`fenced status` says where each bundle lies; its graph states the contract. The bench stands beside the daemon (the
sockets are AF_UNIX), so it can read the file, if it may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from abi.colour import ClockId, TimeMark
from abi.graph import decode
from abi.graph_values import OutputView
from abi.stream_format import StreamFormat
from lab.sign.pack import open_checked

__all__ = ["ServedModel", "as_camera", "read_model", "served_models"]

PERIOD_NS = 50_000_000


@dataclass(frozen=True)
class ServedModel:
    """One model. `streams`: the contract's format of each of its inputs; `digest`: SHA-256 of the statement, hex."""

    name: str
    version: str
    digest: str
    path: Path
    streams: Mapping[str, StreamFormat]
    outputs: tuple[OutputView, ...]
    deadline_ns: int


def served_models(status: Mapping[str, Any]) -> tuple[ServedModel, ...]:
    """The models of a `fenced status`. Raises OSError or signing's Refused where a bundle cannot be read."""
    return tuple(read_model(Path(one["path"]), one["digest"]) for one in status["models"])


def read_model(path: Path, digest: str = "") -> ServedModel:
    """The model in a bundle file, by its own statement; no signature is looked at."""
    with open_checked(path) as (sealed, _, stated):
        names = [blob.name for blob in stated.blobs]
        graph = decode(bytes(sealed.view(sealed.layout.blobs[names.index("graph")])))
    entry = graph.entrypoints[0]
    return ServedModel(
        stated.model.name, stated.model.version, digest, path,
        {graph.frames[index].stream: graph.frames[index].format for index in entry.frames},
        tuple(graph.outputs[index].view for index in entry.outputs), entry.deadline_ns,
    )  # fmt: skip


def as_camera(contract: StreamFormat, name: str = "bench camera", period_ns: int = PERIOD_NS) -> StreamFormat:
    """A contract's format with what is a camera's own: CLOCK_MONOTONIC, start of exposure, `period_ns`, its name."""
    return replace(
        contract, clock=ClockId.MONOTONIC, mark=TimeMark.EXPOSURE_START, period_ns=period_ns, camera_name=name
    )
