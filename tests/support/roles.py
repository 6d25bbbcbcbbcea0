"""Signed bundles with several entrypoints over one recurrent state, whose every number a test can foretell.

    primary     waits at the gate in the frame (tests.support.gate), then sum += pixels, values = sum
    lighter     sum += pixels at once, values = -sum
    state only  sum += pixels at once, no values

In the primary, pixel 1 = 255 leaves the last two values unwritten, and pixel 2 = 255 makes one of them infinite.

A PairModel has two cameras and a state-only entrypoint that takes the second one alone:

    primary     waits at the gate in right, then sum += right, values = sum - left
    state only  sum += right
"""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from abi import golden
from abi.format import ClockId, TimeMark
from abi.graph import (
    HAL_VERSION,
    Access,
    Argument,
    Buffer,
    BufferKind,
    DType,
    Entrypoint,
    EntryRole,
    FrameInput,
    GoldenVector,
    Graph,
    Launch,
    MissPolicy,
    Output,
    OutputView,
    Program,
    StateBuffer,
)
from abi.packet import ABI_VERSION
from lab.compile.link import Kernel, link, symbol
from tests.simulators import BundleSimulator
from tests.support.bundles import CPU, OUT_BYTES, PIXELS, BundleMaker, Pixels, frame_format
from tests.support.gate import hold

_FRAME, _OUT, _SUM = 0, 1, 2
_LOOP = f"for (int i = 0; i < {PIXELS}; i++)"
_KERNELS = (
    Kernel(f"""void heavy(float* restrict s, float* restrict o, unsigned char* restrict a) {{
      {hold("a")}
      {_LOOP} s[i] += a[i];
      for (int i = 0; i < {PIXELS} - 2 * (a[1] == 255); i++) o[i] = s[i];
      if (a[2] == 255) o[5] = 1.0f / (a[2] - 255.0f); }}""", "heavy"),
    Kernel(f"""void light(float* restrict s, float* restrict o, unsigned char* restrict a) {{
      {_LOOP} {{ s[i] += a[i]; o[i] = -s[i]; }} }}""", "light"),
    Kernel(f"""void keep(float* restrict s, unsigned char* restrict a) {{
      {_LOOP} s[i] += a[i]; }}""", "keep"),
    Kernel(f"""void both(float* restrict s, float* restrict o, unsigned char* restrict a, unsigned char* restrict b) {{
      {hold("b")}
      {_LOOP} {{ s[i] += b[i]; o[i] = s[i] - a[i]; }} }}""", "both"),
)  # fmt: skip
_BOTH = 3
_ROLES = {EntryRole.PRIMARY: 1, EntryRole.LIGHTER: -1, EntryRole.STATE_ONLY: 1}  # the sign of what each one leaves


@functools.cache
def _code() -> bytes:
    return link(_KERNELS, arch=platform.machine(), cpu=CPU)


@functools.cache
def _seeds() -> tuple[tuple[int, Pixels], ...]:
    """Two golden seeds whose pictures every entrypoint takes completely."""
    found: list[tuple[int, Pixels]] = []
    for seed in range(1, 5000):
        frame = np.empty(PIXELS, np.uint8)
        golden.fill(frame, golden.input_seed(seed, 0))
        if frame[1] != 255 and frame[2] != 255:
            found.append((seed, frame))
    return tuple(found[:2])


@dataclass(frozen=True)
class RoleModel:
    """What is built: the primary, and the others where `roles` names them. misses: limit and window of the primary."""

    name: str = "tiny"
    version: str = "1.0.0"
    release: int = 1
    roles: tuple[EntryRole, ...] = ()
    stream: str = "road"
    deadline_ns: int = 0
    misses: tuple[int, int] = (0, 0)
    on_misses: MissPolicy = MissPolicy.NONE

    def graph(self) -> Graph:
        """The graph with two golden vectors for each entrypoint."""
        contract = replace(
            frame_format(), clock=ClockId.UNSPECIFIED, mark=TimeMark.UNSPECIFIED, period_ns=0, camera_name=""
        )
        read, write, both = Access.READ, Access.WRITE, Access.READ_WRITE
        state, out, frame = Argument(_SUM, 0, OUT_BYTES), Argument(_OUT, 0, OUT_BYTES), Argument(_FRAME, 0, PIXELS)
        kinds = (EntryRole.PRIMARY, *self.roles)
        numbers = [list(_ROLES).index(role) for role in kinds]
        access = {0: (both, write, read), 1: (both, write, read), 2: (both, read)}
        arguments = {0: (state, out, frame), 1: (state, out, frame), 2: (state, frame)}
        return Graph(
            abi_version=ABI_VERSION,
            hal_version=HAL_VERSION,
            driver="cpu",
            threads=1,
            arena_bytes=0,
            buffers=(
                Buffer(BufferKind.FRAME, PIXELS, align_bytes=64),
                Buffer(BufferKind.OUTPUT, OUT_BYTES, align_bytes=64),
                Buffer(BufferKind.STATE, OUT_BYTES, align_bytes=64),
            ),
            programs=tuple(Program(_KERNELS[n].function, symbol(n), access[n], flops=PIXELS) for n in numbers),
            launches=tuple(Launch(at, arguments[n], (1,)) for at, n in enumerate(numbers)),
            frames=(FrameInput("image", self.stream, contract, _FRAME),),
            aux=(),
            states=(StateBuffer("sum", DType.FLOAT32, (PIXELS,), _SUM),),
            outputs=(Output(OutputView("values", DType.FLOAT32, (PIXELS,), "1", 0, OUT_BYTES), _OUT),),
            entrypoints=tuple(self._entry(at, role) for at, role in enumerate(kinds)),
            goldens=tuple(
                GoldenVector(at, seed, (2 * at + which) * OUT_BYTES, OUT_BYTES)
                for at in range(len(kinds))
                for which, (seed, _) in enumerate(_seeds())
            ),
        )

    def _entry(self, at: int, role: EntryRole) -> Entrypoint:
        outputs = () if role is EntryRole.STATE_ONLY else (0,)
        deadline_ns = 0 if role is EntryRole.STATE_ONLY else self.deadline_ns
        limit, window = self.misses if role is EntryRole.PRIMARY else (0, 0)
        policy = self.on_misses if role is EntryRole.PRIMARY else MissPolicy.NONE
        return Entrypoint(role.name.lower(), at, 1, (0,), (), outputs, 600_000_000_000, deadline_ns=deadline_ns,
                          role=role, miss_limit=limit, miss_window=window, on_misses=policy)  # fmt: skip

    def goldens(self) -> bytes:
        """The expected outputs, and the state that the state-only entrypoint leaves."""
        signs = [_ROLES[role] for role in (EntryRole.PRIMARY, *self.roles)]
        return b"".join((sign * frame.astype(np.float32)).tobytes() for sign in signs for _, frame in _seeds())

    def write(self, maker: BundleMaker) -> Path:
        """The signed bundle."""

        def edit(simulator: BundleSimulator) -> None:
            simulator.blobs["code"] = _code()

        return maker.write(self, edit=edit)


_LEFT, _RIGHT = 0, 3


@functools.cache
def _golden_frame(seed: int, index: int) -> Pixels:
    frame = np.empty(PIXELS, np.uint8)
    golden.fill(frame, golden.input_seed(seed, index))
    return frame


@functools.cache
def _pair_seeds() -> tuple[int, ...]:
    return 1, 2


@dataclass(frozen=True)
class PairModel(RoleModel):
    """Two cameras, `left` and `right`, that are 5 ms apart at most."""

    def graph(self) -> Graph:
        base = RoleModel(roles=(EntryRole.STATE_ONLY,)).graph()
        primary, state_only = base.entrypoints
        state, out = base.launches[0].arguments[:2]
        left, right = Argument(_LEFT, 0, PIXELS), Argument(_RIGHT, 0, PIXELS)
        access = (Access.READ_WRITE, Access.WRITE, Access.READ, Access.READ)
        return replace(
            base,
            buffers=(*base.buffers, base.buffers[_FRAME]),
            programs=(Program("both", symbol(_BOTH), access, flops=PIXELS), base.programs[1]),
            launches=(Launch(0, (state, out, left, right), (1,)), Launch(1, (state, right), (1,))),
            frames=tuple(
                replace(base.frames[0], name=name, stream=name, buffer=buffer)
                for name, buffer in (("left", _LEFT), ("right", _RIGHT))
            ),
            entrypoints=(
                replace(primary, frames=(0, 1), max_skew_ns=5_000_000),
                replace(state_only, frames=(1,), max_skew_ns=5_000_000),
            ),
            goldens=tuple(replace(one, seed=_pair_seeds()[at % 2]) for at, one in enumerate(base.goldens)),
        )

    def goldens(self) -> bytes:
        values = [
            _golden_frame(seed, 1).astype(np.float32) - _golden_frame(seed, 0).astype(np.float32)
            for seed in _pair_seeds()
        ]
        states = [_golden_frame(seed, 0).astype(np.float32) for seed in _pair_seeds()]
        return b"".join(one.tobytes() for one in (*values, *states))


def total(*frames: Pixels) -> NDArray[np.float32]:
    """What the primary publishes after these frames."""
    return np.stack([frame.astype(np.float32) for frame in frames]).sum(axis=0, dtype=np.float32)
