"""Probe models: tiny models of known meaning, for a bench and for tests that need a real model but not a real network.

Their frames are R8 pictures of 64 x 16; `values` is one float32 a pixel. Kernels:

    add    values = pixel + a number that is part of the graph
    slow   values = pixel, after about two milliseconds for each unit of the first pixel; 255, for a run that is not to
           end by itself, is ten seconds; a camera that overwrites the first pixel with 0 ends the run
    total  values = the sum of all frames so far (recurrent state)
    scale  values = pixel * the aux input `gain` (float32)
    lazy   values = pixel, but the last two are not written where the first pixel is 255
    inf    values = pixel / (pixel - 255): infinity where a pixel is 255
    pair   values = left pixel - right pixel (two streams)
    blind  values = 1, whatever the picture shows
"""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abi import golden
from abi.format import (
    ChromaSite,
    ClockId,
    Matrix,
    Primaries,
    Range,
    StreamFormat,
    TimeMark,
    Transfer,
    make_format,
)
from abi.graph import (
    HAL_VERSION,
    Access,
    Argument,
    AuxInput,
    Buffer,
    BufferKind,
    DType,
    Entrypoint,
    FrameInput,
    GoldenVector,
    Graph,
    Launch,
    NanPolicy,
    Output,
    OutputView,
    Program,
    StateBuffer,
)
from abi.packet import ABI_VERSION
from lab.compile.link import Kernel, link, symbol

WIDTH, HEIGHT = 64, 16
PIXELS = WIDTH * HEIGHT
OUT_BYTES = 4 * PIXELS
CPU = {"x86_64": "x86_64_v2", "aarch64": "generic"}[platform.machine()]
ROUNDS_A_UNIT = 400_000  # of the slow kernel: about two milliseconds
ENDLESS = 255
"""The first pixel of a run that a check ends, by killing somebody or by overwriting it."""

_LOOP = f"for (int i = 0; i < {PIXELS}; i++)"
KERNELS = (
    Kernel(f"""void add(float* restrict o, unsigned char* restrict a, const int n) {{
      {_LOOP} o[i] = a[i] + n; }}""", "add"),
    Kernel(f"""void slow(float* restrict o, unsigned char* restrict a) {{
      volatile unsigned char* first = a;
      volatile unsigned int x = 1;
      for (unsigned int r = 0; r < *first * (*first == {ENDLESS} ? 20u : 1u) * {ROUNDS_A_UNIT}u; r++)
        x = x * 1664525u + 1013904223u;
      {_LOOP} o[i] = a[i]; }}""", "slow"),
    Kernel(f"""void total(float* restrict s, float* restrict o, unsigned char* restrict a) {{
      {_LOOP} {{ s[i] += a[i]; o[i] = s[i]; }} }}""", "total"),
    Kernel(f"""void scale(float* restrict o, unsigned char* restrict a, float* restrict k) {{
      {_LOOP} o[i] = a[i] * k[0]; }}""", "scale"),
    Kernel(f"""void lazy(float* restrict o, unsigned char* restrict a) {{
      for (int i = 0; i < {PIXELS} - 2 * (a[0] == 255); i++) o[i] = a[i]; }}""", "lazy"),
    Kernel(f"""void inf(float* restrict o, unsigned char* restrict a) {{
      {_LOOP} o[i] = a[i] / (a[i] - 255.0f); }}""", "inf"),
    Kernel(f"""void pair(float* restrict o, unsigned char* restrict a, unsigned char* restrict b) {{
      {_LOOP} o[i] = (float)a[i] - (float)b[i]; }}""", "pair"),
    Kernel(f"""void blind(float* restrict o, unsigned char* restrict a) {{
      {_LOOP} o[i] = 1; }}""", "blind"),
)  # fmt: skip
NAMES = ("add", "slow", "total", "scale", "lazy", "inf", "pair", "blind")
FRAME, OUT, EXTRA = 0, 1, 2

Pixels = NDArray[np.uint8]


def frame_format(period_ns: int = 50_000_000, clock: ClockId = ClockId.MONOTONIC) -> StreamFormat:
    """The format of every stream here, complete as a camera declares it."""
    made = make_format(
        "R8", WIDTH, HEIGHT, range=Range.FULL, matrix=Matrix.IDENTITY, primaries=Primaries.SENSOR_NATIVE,
        transfer=Transfer.LINEAR, chroma_site=ChromaSite.NOT_SUBSAMPLED,
    )  # fmt: skip
    return replace(made, clock=clock, mark=TimeMark.EXPOSURE_START, period_ns=period_ns, camera_name="test camera")


@functools.cache
def code() -> bytes:
    """All kernels and the queue runtime, linked for this machine."""
    return link(KERNELS, arch=platform.machine(), cpu=CPU)


@dataclass(frozen=True)
class TinyModel:
    """What is built. `kernel` is one of NAMES; `number` is what `add` adds; `golden_units`: the first pixel of what
    `slow` is tried with, by default no time at all.
    """

    kernel: str = "add"
    name: str = "tiny"
    version: str = "1.0.0"
    release: int = 1
    streams: tuple[str, ...] = ("road",)
    number: int = 3
    nan: NanPolicy = NanPolicy.REFUSE
    hand_over: bool = False
    aux_max_age_ns: int = 0
    aux_default: bytes = b""
    deadline_ns: int = 0
    budget_ns: int = 5_000_000_000
    max_skew_ns: int = 0
    unit: str = "1"
    golden_units: int = 0

    def graph(self) -> Graph:
        """The graph with two golden vectors."""
        contract = replace(
            frame_format(), clock=ClockId.UNSPECIFIED, mark=TimeMark.UNSPECIFIED, period_ns=0, camera_name=""
        )
        read, write = Access.READ, Access.WRITE
        buffers = [
            Buffer(BufferKind.FRAME, PIXELS, align_bytes=64),
            Buffer(BufferKind.OUTPUT, OUT_BYTES, align_bytes=64),
        ]
        whole = [Argument(OUT, 0, OUT_BYTES), Argument(FRAME, 0, PIXELS)]
        access = [write, read]
        values: tuple[int, ...] = ()
        if self.kernel == "total":
            buffers.append(Buffer(BufferKind.STATE, OUT_BYTES, align_bytes=64))
            whole.insert(0, Argument(EXTRA, 0, OUT_BYTES))
            access.insert(0, Access.READ_WRITE)
        elif self.kernel == "scale":
            buffers.append(Buffer(BufferKind.AUX, 4, align_bytes=4))
            whole.append(Argument(EXTRA, 0, 4))
            access.append(read)
        elif self.kernel == "pair":
            buffers.append(Buffer(BufferKind.FRAME, PIXELS, align_bytes=64))
            whole.append(Argument(EXTRA, 0, PIXELS))
            access.append(read)
        elif self.kernel == "add":
            values = (self.number,)
        streams = self.streams if self.kernel == "pair" else self.streams[:1]
        return Graph(
            abi_version=ABI_VERSION,
            hal_version=HAL_VERSION,
            driver="cpu",
            threads=1,
            arena_bytes=0,
            buffers=tuple(buffers),
            programs=(Program(self.kernel, symbol(NAMES.index(self.kernel)), tuple(access), flops=PIXELS),),
            launches=(Launch(0, tuple(whole), (1,), values=values),),
            frames=tuple(FrameInput(f"image{i}", name, contract, (FRAME, EXTRA)[i]) for i, name in enumerate(streams)),
            aux=(self._gain(),) if self.kernel == "scale" else (),
            states=(StateBuffer("sum", DType.FLOAT32, (PIXELS,), EXTRA, self.hand_over),) * (self.kernel == "total"),
            outputs=(Output(OutputView("values", DType.FLOAT32, (PIXELS,), self.unit, 0, OUT_BYTES, self.nan), OUT),),
            entrypoints=(
                Entrypoint("main", 0, 1, tuple(range(len(streams))), (0,) if self.kernel == "scale" else (), (0,),
                           self.budget_ns, self.max_skew_ns, self.deadline_ns),
            ),
            goldens=tuple(GoldenVector(0, seed, at * OUT_BYTES, OUT_BYTES) for at, seed in enumerate(self.seeds())),
        )  # fmt: skip

    def _gain(self) -> AuxInput:
        default = self.aux_default
        return AuxInput("gain", DType.FLOAT32, (1,), EXTRA, self.aux_max_age_ns, bool(default), default)

    def seeds(self) -> tuple[int, int]:
        """Golden seeds whose pictures the kernel takes quickly and without infinity."""
        found = [seed for seed in range(1, 2000) if self._is_suitable(_golden_frame(seed))]
        return found[0], found[1]

    def _is_suitable(self, frame: Pixels) -> bool:
        if self.kernel == "slow":
            return int(frame[0]) == self.golden_units
        return 255 not in frame

    def values(self, *frames: Pixels, gain: float = 1.0) -> NDArray[np.float32]:
        """What one run gives, with state as at the start."""
        pixels = frames[0].astype(np.float32)
        if self.kernel == "add":
            return pixels + np.float32(self.number)
        if self.kernel == "scale":
            return pixels * np.float32(gain)
        if self.kernel == "pair":
            return pixels - frames[1].astype(np.float32)
        if self.kernel == "inf":
            with np.errstate(divide="ignore"):
                return pixels / (pixels - np.float32(255))
        return np.ones_like(pixels) if self.kernel == "blind" else pixels

    def goldens(self) -> bytes:
        """The expected outputs of both golden vectors."""
        parts = []
        for seed in self.seeds():
            frames = [_golden_frame(golden.input_seed(seed, index)) for index in range(2)]
            gain = np.zeros(4, np.uint8)
            golden.fill_elements(gain, DType.FLOAT32, golden.input_seed(seed, 1))
            parts.append(self.values(*frames, gain=float(gain.view(np.float32)[0])).tobytes())
        return b"".join(parts)


@functools.cache
def _golden_frame(seed: int) -> Pixels:
    frame = np.empty(PIXELS, np.uint8)
    golden.fill(frame, seed)
    return frame
