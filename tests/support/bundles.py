"""Tiny signed bundles of known meaning, for tests that need a real model but not a real network.

The models are the bench's own probes (`lab.hil.probe`); here they are signed, well or badly, by a simulated lab.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from abi.graph import Graph, encode
from lab.compile.link import features
from lab.hil.probe import (
    CPU,
    EXTRA,
    FRAME,
    HEIGHT,
    KERNELS,
    NAMES,
    OUT,
    OUT_BYTES,
    PIXELS,
    WIDTH,
    Pixels,
    TinyModel,
    code,
    frame_format,
)
from signing.statement import Model, Target
from tests.simulators import BundleSimulator, sign_root

__all__ = [
    "CPU",
    "EXTRA",
    "FRAME",
    "HEIGHT",
    "KERNELS",
    "NAMES",
    "OUT",
    "OUT_BYTES",
    "PIXELS",
    "WIDTH",
    "BundleMaker",
    "Pixels",
    "Probe",
    "TinyModel",
    "code",
    "frame_format",
]


class Probe(Protocol):
    """A model that can be written: its statement's fields, its graph, and what it gives for its golden vectors."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def release(self) -> int: ...

    def graph(self) -> Graph: ...

    def goldens(self) -> bytes: ...


class BundleMaker:
    """Writes bundles of tiny models into `folder`, all signed by one lab, and that lab's root as `root_path`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._simulator = BundleSimulator(folder)
        self.root_path = folder / "root.json"
        root = self._simulator.root
        self.root_path.write_bytes(sign_root(root, self._simulator.keys.root))
        self.root_path.chmod(0o644)

    def write(
        self,
        model: Probe,
        file_name: str = "",
        *,
        edit: Callable[[BundleSimulator], None] = lambda simulator: None,
        edit_graph: Callable[[Graph], Graph] = lambda graph: graph,
        cpu_features: Sequence[str] | None = None,
    ) -> Path:
        """Writes and signs the bundle; `edit` may spoil the simulator's parts first."""
        simulator = self._simulator
        needed = features(platform.machine(), CPU) if cpu_features is None else tuple(cpu_features)
        before = vars(simulator).copy()
        try:
            simulator.path = self.folder / (file_name or f"{model.name}-{model.version}.fenced")
            simulator.blobs = {
                "graph": encode(edit_graph(model.graph())),
                "code": code(),
                "weights": b"",
                "goldens": model.goldens(),
            }
            simulator.statement = replace(
                simulator.statement,
                model=Model(model.name, model.version, model.release),
                target=Target("cpu", platform.machine(), needed, 1024 * 1024),
                attachments=(),
            )
            edit(simulator)
            return simulator.write()
        finally:
            vars(simulator).update(before)
