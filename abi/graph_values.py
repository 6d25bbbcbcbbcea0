"""What a captured graph says, as frozen values that mirror `graph.capnp`; import them from `abi.graph`.

Field names are the schema's in snake_case, except `Launch.global_size` and `Launch.local_size` (schema: global,
local), because `global` is a Python keyword. Comments on meaning, units and limits stand in the schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from abi.format import StreamFormat


class BufferKind(IntEnum):
    UNSPECIFIED = 0
    ARENA = 1
    WEIGHTS = 2
    STATE = 3
    FRAME = 4
    AUX = 5
    OUTPUT = 6


class Access(IntEnum):
    UNSPECIFIED = 0
    READ = 1
    WRITE = 2
    READ_WRITE = 3


class DType(IntEnum):
    """Element types of outputs, aux inputs and state (result.capnp)."""

    UNSPECIFIED = 0
    FLOAT32 = 1
    FLOAT16 = 2
    INT8 = 3
    UINT8 = 4
    INT16 = 5
    UINT16 = 6
    INT32 = 7
    UINT32 = 8
    INT64 = 9
    UINT64 = 10
    BOOL8 = 11
    BFLOAT16 = 12

    @property
    def item_bytes(self) -> int:
        """Bytes of one element; 0 for UNSPECIFIED."""
        return _ITEM_BYTES[self]


_ITEM_BYTES = {
    DType.UNSPECIFIED: 0,
    DType.FLOAT32: 4,
    DType.FLOAT16: 2,
    DType.INT8: 1,
    DType.UINT8: 1,
    DType.INT16: 2,
    DType.UINT16: 2,
    DType.INT32: 4,
    DType.UINT32: 4,
    DType.INT64: 8,
    DType.UINT64: 8,
    DType.BOOL8: 1,
    DType.BFLOAT16: 2,
}


class NanPolicy(IntEnum):
    REFUSE = 0
    FLAG = 1


class EntryRole(IntEnum):
    """When the daemon runs an entrypoint."""

    UNSPECIFIED = 0
    PRIMARY = 1
    LIGHTER = 2
    STATE_ONLY = 3
    UNSCHEDULED = 4


class MissPolicy(IntEnum):
    """What the daemon does once missed deadlines persist."""

    UNSPECIFIED = 0
    NONE = 1
    SKIP = 2
    LIGHTER = 3
    STOP = 4


@dataclass(frozen=True, slots=True)
class Buffer:
    kind: BufferKind
    size_bytes: int
    offset: int = 0
    align_bytes: int = 1
    initial_offset: int = 0
    initial_from_weights: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    name: str
    symbol: str
    argument_access: tuple[Access, ...]
    code_offset: int = 0
    code_bytes: int = 0
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Argument:
    buffer: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Launch:
    program: int
    arguments: tuple[Argument, ...]
    global_size: tuple[int, ...] = (1,)
    local_size: tuple[int, ...] = ()
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FrameInput:
    name: str
    stream: str
    format: StreamFormat
    buffer: int


@dataclass(frozen=True, slots=True)
class AuxInput:
    name: str
    dtype: DType
    shape: tuple[int, ...]
    buffer: int
    max_age_ns: int = 0
    has_default: bool = False
    default_value: bytes = b""


@dataclass(frozen=True, slots=True)
class StateBuffer:
    name: str
    dtype: DType
    shape: tuple[int, ...]
    buffer: int
    hand_over: bool = False


@dataclass(frozen=True, slots=True)
class OutputView:
    """A named slice: `offset` and `size_bytes` are bytes inside the output's buffer."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    unit: str
    offset: int
    size_bytes: int
    nan: NanPolicy = NanPolicy.REFUSE


@dataclass(frozen=True, slots=True)
class Output:
    view: OutputView
    buffer: int
    absolute_tolerance: float = 0.0
    relative_tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class Entrypoint:
    name: str
    first_launch: int
    launch_count: int
    frames: tuple[int, ...]
    aux: tuple[int, ...]
    outputs: tuple[int, ...]
    budget_ns: int
    max_skew_ns: int = 0
    deadline_ns: int = 0
    role: EntryRole = EntryRole.PRIMARY
    miss_limit: int = 0
    miss_window: int = 0
    on_misses: MissPolicy = MissPolicy.NONE


@dataclass(frozen=True, slots=True)
class GoldenVector:
    entrypoint: int
    seed: int
    output_offset: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Graph:
    abi_version: int
    hal_version: int
    driver: str
    threads: int
    arena_bytes: int
    buffers: tuple[Buffer, ...]
    programs: tuple[Program, ...]
    launches: tuple[Launch, ...]
    frames: tuple[FrameInput, ...]
    aux: tuple[AuxInput, ...]
    states: tuple[StateBuffer, ...]
    outputs: tuple[Output, ...]
    entrypoints: tuple[Entrypoint, ...]
    goldens: tuple[GoldenVector, ...] = ()
