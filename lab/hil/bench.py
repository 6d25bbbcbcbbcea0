"""A bench: one daemon under test with what is needed to try it, started by the harness or one that served already.

`Bench.started` serves the probe models (`PROBES`) from the vehicle environment, under a lab of the bench's own.
`Bench.attached` takes a daemon as it is; what needs probe models or daemons of its own is then not available, unless
the daemon serves the probes of a lab that is named.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from abi.stream_format import StreamFormat
from client.camera import Camera
from lab.hil.clients import Sockets
from lab.hil.daemon import PATIENT, VEHICLE, DaemonProcess
from lab.hil.probe import TinyModel
from lab.hil.probe_lab import ProbeLab
from lab.hil.served import ServedModel, as_camera, read_model, served_models
from lab.hil.verdict import Unavailable

if TYPE_CHECKING:
    from lab.hil.pixel_bench import PixelBench

__all__ = ["LIMITS", "PROBES", "Bench", "Need"]

SKEW_LIMIT_NS: Final = 15_000_000
AUX_MAX_AGE_NS: Final = 20_000_000_000

PROBES: Final[Mapping[str, TinyModel]] = MappingProxyType(
    {
        "tiny": TinyModel("add", name="tiny", streams=("road",)),
        "slow": TinyModel("slow", name="slow", streams=("slow",)),
        "total": TinyModel("total", name="total", streams=("total",)),
        "lazy": TinyModel("lazy", name="lazy", streams=("lazy",)),
        "pair": TinyModel("pair", name="pair", streams=("left", "right"), max_skew_ns=SKEW_LIMIT_NS),
        "scale": TinyModel("scale", name="scale", streams=("scale",), aux_max_age_ns=AUX_MAX_AGE_NS),
    }
)
"""What a bench serves: the probe models by name, each on streams of its own."""

LIMITS: Final[Mapping[str, int]] = PATIENT
"""Of a bench's daemon."""


class Need(Enum):
    """What a check needs of its bench."""

    SERVING = "any daemon that serves a model of one stream"
    PROBES = "a daemon that serves the probe models"
    OWN = "daemons of the harness's own"


@dataclass
class Bench(Sockets):
    """See the module. `folder`: scratch of the bench's own; `daemon` and `lab` are None where it has none."""

    sockets: Path
    folder: Path
    daemon: DaemonProcess | None = None
    lab: ProbeLab | None = None
    vehicle: Path = VEHICLE
    memory_frames: int = 50_000
    """How many frames the check of resident memory runs."""
    _models: tuple[ServedModel, ...] = field(default=(), repr=False)
    _pixels: PixelBench | None = field(default=None, repr=False)
    _kept: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    @classmethod
    @contextlib.contextmanager
    def started(cls, folder: Path, *, vehicle: Path = VEHICLE) -> Iterator[Bench]:
        """A bench in `folder` (new or empty) whose daemon serves the probe models. Raises DaemonFailed."""
        lab = ProbeLab(folder / "lab")
        bundles = [lab.write(model) for model in PROBES.values()]
        streams = [stream for model in PROBES.values() for stream in model.streams]
        with DaemonProcess(
            folder / "daemon", bundles, lab.root_path, streams, limits=dict(LIMITS), vehicle=vehicle
        ) as daemon:
            bench = cls(daemon.sockets, folder, daemon, lab, vehicle)
            with bench:
                yield bench

    @classmethod
    @contextlib.contextmanager
    def serving(cls, folder: Path, bundle: Path, root: Path, *, vehicle: Path = VEHICLE) -> Iterator[Bench]:
        """A bench in `folder` whose daemon serves a signed bundle instead of the probes. Raises DaemonFailed."""
        streams = list(read_model(bundle).streams)
        with (
            DaemonProcess(folder / "daemon", [bundle], root, streams, limits=dict(LIMITS), vehicle=vehicle) as daemon,
            cls(daemon.sockets, folder, daemon, None, vehicle) as bench,
        ):
            yield bench

    @classmethod
    def attached(cls, sockets: Path, folder: Path, lab: Path | None = None, vehicle: Path = VEHICLE) -> Bench:
        """A daemon that serves already. `lab`: the folder of the probe lab whose bundles it serves, if it does."""
        return cls(sockets, folder, None, ProbeLab(lab) if lab else None, vehicle)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._kept.close()

    def require(self, need: Need) -> None:
        """Raises Unavailable when this bench has not what a check needs."""
        if need is Need.OWN and self.daemon is None:
            raise Unavailable(f"needs {need.value}; run it without a socket directory of a daemon that serves already")
        if need is Need.PROBES:
            served = {model["name"] for model in self.status()["models"]}
            if self.lab is None or not set(PROBES) <= served:
                raise Unavailable(f"needs {need.value}; see `fenced-lab hil probes`")

    @property
    def signing(self) -> ProbeLab:
        """The bench's lab. Raises Unavailable."""
        if self.lab is None:
            raise Unavailable("needs a lab whose root the daemon trusts; see `fenced-lab hil probes`")
        return self.lab

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """What the daemon serves, read once."""
        if not self._models:
            self._models = served_models(self.status())
        return self._models

    @property
    def first(self) -> ServedModel:
        """The first model of one stream. Raises Unavailable."""
        for model in self.models:
            if len(model.streams) == 1:
                return model
        raise Unavailable(f"needs {Need.SERVING.value}")

    @property
    def stream(self) -> str:
        """The stream of `first`."""
        return next(iter(self.first.streams))

    @property
    def format(self) -> StreamFormat:
        """The format of `stream`, as a camera declares it."""
        return as_camera(self.first.streams[self.stream])

    def open_first(self, **more: Any) -> Camera:
        """A camera on `stream`."""
        return self.camera(self.stream, **{"format": self.format, **more})

    def noise(self, seed: int) -> NDArray[np.uint8]:
        """A frame of `stream` that shows nothing: uint8 [bufferBytes], 1..254."""
        return np.random.default_rng(seed).integers(1, 255, self.format.buffer_bytes, dtype=np.uint8)

    @property
    def pixels(self) -> PixelBench:
        """A daemon that serves the pixel probes; they are compiled and it is started when first asked for."""
        if self._pixels is None:
            from lab.hil.pixel_bench import PixelBench  # noqa: PLC0415 (brings the compiler in, which few checks need)

            self.require(Need.OWN)
            self._pixels = self._kept.enter_context(PixelBench.started(self.folder / "pixels", vehicle=self.vehicle))
        return self._pixels

    def own(self, name: str, models: Sequence[TinyModel], *, limits: Mapping[str, int] | None = None,
            streams: Mapping[str, Mapping[str, object]] | None = None) -> DaemonProcess:  # fmt: skip
        """A further daemon, not yet started, in a folder of its own below the bench's, which serves `models`."""
        self.require(Need.OWN)
        folder = self.folder / name
        lab = ProbeLab(folder / "lab")
        bundles = [lab.write(model) for model in models]
        named = streams or {stream: {} for model in models for stream in model.streams}
        return DaemonProcess(
            folder / "daemon", bundles, lab.root_path, named, limits={**LIMITS, **(limits or {})}, vehicle=self.vehicle
        )
