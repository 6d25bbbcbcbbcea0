"""What a spec.toml asks the compiler for, as values that are complete and checked.

Unknown keys are refused, and so is everything unspecified: range, matrix and the other colour fields have no default
(cases/frames.md row 10). Sizes are pixels, offsets and strides bytes, times milliseconds as the keys' names say.
`load_spec` reads the file; the dataclasses below hold no reference to it except the model's path.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from abi.graph import DType, EntryRole, MissPolicy
from abi.stream_format import Plane, StreamFormat


@dataclass(frozen=True)
class ModelSpec:
    """What the bundle is called, and where the model comes from."""

    name: str
    version: str
    """Semantic version."""
    source: Path
    """The ONNX file, or the Python file of `function`, absolute; in the file relative to the spec."""
    release: int
    """Rollback counter, 1..2^63-1."""
    function: str = ""
    """The function in a Python file that builds the pipeline (`lab.compile.python_pipeline`); empty: an ONNX file."""


@dataclass(frozen=True)
class TargetSpec:
    """The machine the bundle is for."""

    driver: str
    arch: str
    cpu: str
    """cpu: the CPU baseline in zig's spelling, for instance x86_64_v3. Empty for other drivers."""
    threads: int
    """cpu: workers that every launch is fanned over. 1 for other drivers."""


@dataclass(frozen=True)
class InputSpec:
    """One camera frame, and how its bytes become the model's tensor.

    The tensor is float32 [1, channels, resize height, resize width]: R'G'B', B'G'R' or one channel on the scale of the
    format's code values (0..255 for 8 bits, 0..1023 for 10), then (x - mean) / std.
    """

    name: str
    """The model's input tensor."""
    stream: str
    format: str
    """The pixel format's name in `lab.compile.pixels.FORMATS`."""
    stream_format: StreamFormat
    """The contract with the camera: planes, colour, sizes."""
    range: str
    matrix: str
    crop: tuple[int, int, int, int]
    """x, y, width, height in luma pixels of the whole picture."""
    resize: tuple[int, int]
    """Width, height of the tensor."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layout: str
    """`NCHW`; or `bytes`, for Python pipelines: the frame's bytes as they are, uint8 [buffer_bytes]."""
    channels: str
    """`RGB` or `BGR`: the order of the tensor's channels, and of mean and std; or `GREY`: one channel."""
    demosaic: str = ""
    """What becomes of a Bayer mosaic: `none`, one channel as it is, or `bilinear`, to R, G, B. Empty: no mosaic."""

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Where each plane lies in the buffer, in bytes."""
        return self.stream_format.planes

    @property
    def buffer_bytes(self) -> int:
        """Size of a frame's buffer, padding included."""
        return self.stream_format.buffer_bytes

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the tensor the model gets: [1, channel, row, column]."""
        return (1, len(self.mean), self.resize[1], self.resize[0])


@dataclass(frozen=True)
class OutputSpec:
    """One named view of one of the model's output tensors."""

    tensor: str
    name: str
    slice: tuple[int, int] | None
    """First and one past the last element of the flattened tensor; None: the whole tensor."""
    unit: str
    """SI symbol; "1" for a pure number."""
    nan: str
    """`refuse` or `flag`."""
    dims: tuple[int, ...] | None
    """Shape of the view; None: the tensor's own shape, or one axis where it is sliced."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type and shape of a tensor that is no frame and no output."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return prod(self.shape) * self.dtype.item_bytes


@dataclass(frozen=True)
class AuxSpec(TensorSpec):
    """A small tensor that a peer sets: calibration, desire."""

    max_age_ms: float = 0.0
    """Older values are stale; 0: any age is good."""
    default: bytes | None = None
    """What replaces a stale or missing value, as elements' bytes; None: the run is refused."""


@dataclass(frozen=True)
class StateSpec(TensorSpec):
    """A tensor that a run leaves to the next one. It starts as zeros."""

    hand_over: bool = False
    """Whether a new model with the same name, dtype and shape takes the value over."""


@dataclass(frozen=True)
class CheckSpec:
    """How the compiled graph is held against its references."""

    onnxruntime_tolerance: float
    """Largest |ours - onnxruntime's| of any output element, on the same pixels. 0 for a Python pipeline."""
    steps: int
    """Frames with random pixels that every comparison runs."""


@dataclass(frozen=True)
class TimingSpec:
    """When a result is late, and when a run is a hang."""

    deadline_ms: float
    """From start of frame to published; 0: none."""
    budget_ms: float
    """Longest run on the device; longer is a hang."""
    max_skew_ms: float = 0.0
    """Largest distance between the starts of the frames of one run; 0 where there is one input."""


@dataclass(frozen=True)
class EntrySpec:
    """One way to run the model, and when the daemon does (`abi/graph.capnp`: EntryRole, MissPolicy)."""

    name: str
    role: EntryRole
    source: Path
    """As `ModelSpec.source` and `ModelSpec.function`."""
    function: str
    timing: TimingSpec
    miss_limit: int = 0
    """More missed deadlines than this among the last `miss_window` runs persist; 0, 0: no such limit."""
    miss_window: int = 0
    on_misses: MissPolicy = MissPolicy.NONE


@dataclass(frozen=True)
class Spec:
    """A whole spec.toml."""

    path: Path
    model: ModelSpec
    target: TargetSpec
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    check: CheckSpec
    timing: TimingSpec
    aux: tuple[AuxSpec, ...] = ()
    states: tuple[StateSpec, ...] = ()
    entries: tuple[EntrySpec, ...] = ()
    """Ways to run the model, the primary first."""

    @property
    def names(self) -> tuple[str, ...]:
        """What a pipeline is called with, in order: frames, aux inputs, states."""
        tensors: tuple[TensorSpec, ...] = (*self.aux, *self.states)
        return (*(one.name for one in self.inputs), *(one.name for one in tensors))

    def for_entry(self, entry: EntrySpec, taken: Collection[str]) -> Spec:
        """The spec as if `entry` were all of it: its source, timing and outputs, and the tensors named in `taken`."""
        return replace(
            self,
            model=replace(self.model, source=entry.source, function=entry.function),
            inputs=tuple(one for one in self.inputs if one.name in taken),
            aux=tuple(one for one in self.aux if one.name in taken),
            states=tuple(one for one in self.states if one.name in taken),
            outputs=() if entry.role is EntryRole.STATE_ONLY else self.outputs,
            timing=entry.timing,
            entries=(entry,),
        )
