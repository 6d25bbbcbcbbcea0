"""The driver interface: what an accelerator does for a graph, and the closed table of drivers.

A driver loads admitted modules, imports frames, and takes runs; `submit` hands a run to the device and returns its
fence at once. Nothing else completes a run than the device's own timeline. There is no discovery: a driver is one of
the names below. Outputs are bindings that the caller rotates, so run N's output is not overwritten by run N + 1.

Threads: one thread owns an accelerator and everything made by it. Beside it one other thread at a time may bring in a
module: `load`, `allocate`, `import_frame`, and with the executable that it loaded anything, `submit` and `unload`
too, until it hands that over. The owner's runs go on meanwhile. All other calls are the owner's; where it resets the
device in the middle of such a load, the other thread's runs end in ERROR and its calls raise HalError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from abi.graph import Graph
from hal.error import HalCode, HalError
from hal.fence import Fence, Timeline
from hal.memory import Mapping

if TYPE_CHECKING:
    from hal.admit import Admission
    from hal.bindings import Bindings


@dataclass(frozen=True, slots=True)
class SealedSpan:
    """`size_bytes` from `offset` of a write-sealed memfd that the caller keeps open while loading."""

    descriptor: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Module:
    """A model's parts as a driver takes them. The views must come from verified, unchanging memory.

    weights_span: where `weights` lies in a sealed memfd; a driver then maps it read-only instead of copying it.
    """

    graph: Graph
    code: memoryview
    weights: memoryview
    weights_span: SealedSpan | None = None


@dataclass(frozen=True, slots=True)
class DeviceBuffer:
    """Memory that a run can be bound to: `size_bytes` from `address` in the device's address space.

    mapping: the host's view of it. zero_copy: whether the device works on the host's memory itself.
    writable: whether the device may write it; imported frames are read-only.
    """

    address: int
    size_bytes: int
    mapping: Mapping
    offset: int
    writable: bool
    zero_copy: bool

    @property
    def view(self) -> memoryview:
        """The host's view of the bytes, valid for reading once the fence of the run that wrote them has signalled."""
        return self.mapping.view[self.offset : self.offset + self.size_bytes]

    def part(self, offset: int, size_bytes: int) -> DeviceBuffer:
        """A range of this buffer as a buffer of its own, over the same memory. Raises HalError SIZE."""
        if offset < 0 or size_bytes < 1 or offset + size_bytes > self.size_bytes:
            raise HalError(HalCode.SIZE, "a part reaches past its buffer", expected=f"within {self.size_bytes} bytes",
                           found=f"{offset} + {size_bytes}")  # fmt: skip
        return DeviceBuffer(self.address + offset, size_bytes, self.mapping, self.offset + offset, self.writable,
                            self.zero_copy)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Properties:
    """What a device is. `device_count` is how many devices the opened runtime sees."""

    driver: str
    device: str
    arch: str
    features: tuple[str, ...]
    device_count: int
    threads: int
    clock: str


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes held on the device by kind, and how many objects hold them."""

    executables: int
    arena_bytes: int
    weights_bytes: int
    state_bytes: int
    code_bytes: int
    allocated_bytes: int


class Executable(Protocol):
    """A loaded module, made by `Accelerator.load` and freed by `Accelerator.unload`."""

    graph: Graph
    admission: Admission
    timeline: Timeline

    def bindings(self, entrypoint: int) -> Bindings:
        """A new set of bindings for an entrypoint; reuse it for every run. Raises HalError UNKNOWN_ENTRYPOINT."""
        ...

    def state(self, name: str) -> memoryview:
        """The host's view of a state buffer, for hand-over and snapshots; only while nothing is in flight."""
        ...

    def reset_state(self) -> None:
        """Give every state buffer its initial value; only while nothing is in flight."""
        ...

    def launches_done(self) -> int:
        """Launches that the device itself has counted since the module was loaded."""
        ...

    def cancel(self) -> None:
        """Ask the device to end every run in flight at its next launch; their fences turn to ERROR."""
        ...


class Accelerator(Protocol):
    """A device behind a command queue."""

    name: str

    def devices(self) -> tuple[str, ...]:
        """Names of the devices that the driver enumerates, the opened one among them."""
        ...

    def properties(self) -> Properties:
        """What the opened device is."""
        ...

    def memory(self) -> MemoryUse:
        """What is held on the device now."""
        ...

    def load(self, module: Module) -> Executable:
        """Admit the module's graph and make it ready to run. Raises AdmissionRefused or HalError.

        DEVICE_LATCHED: a lost device takes no modules either, since making one may wait for it.
        """
        ...

    def unload(self, executable: Executable) -> None:
        """Free a module; what is in flight is cancelled. Raises HalError DEVICE_HANG where a kernel does not end."""
        ...

    def import_frame(self, mapping: Mapping) -> DeviceBuffer:
        """Make host memory readable by the device, without a copy where it can. Raises HalError ALIGNMENT."""
        ...

    def import_output(self, mapping: Mapping) -> DeviceBuffer:
        """Make host memory writable by the device, for outputs that others read. Raises HalError BINDING."""
        ...

    def allocate(self, name: str, size_bytes: int) -> DeviceBuffer:
        """Memory for outputs and aux inputs that host and device both see, zeroed."""
        ...

    def submit(self, executable: Executable, bindings: Bindings) -> Fence:
        """Hand one run to the device; never blocks. The caller must not touch bound memory before the fence is quiet.

        Raises HalError QUEUE_FULL, BINDING_MISSING, BINDING_ALIAS, DEVICE_LATCHED, CLOSED; the run then never starts.
        """
        ...

    def check(self, now_ns: int) -> HalError | None:
        """Latch the device if a run holds it longer than its budget; the cause where it is latched."""
        ...

    def due_ns(self) -> int | None:
        """When `check` could next find a hang (CLOCK_MONOTONIC); None where nothing is in flight."""
        ...

    def latch(self, cause: HalError) -> None:
        """Declare the device lost: every fence in flight turns to ERROR with the cause, later submits raise."""
        ...

    def reset(self, deadline_ns: int) -> None:
        """Stop what runs and make the device usable again; state is reset.

        Raises HalError RESET_IMPOSSIBLE where the device still runs at `deadline_ns`; the process must then exit.
        """
        ...

    def close(self) -> None:
        """Unload everything. Raises HalError DEVICE_HANG where the device does not let go of its memory."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How a device is opened. Options that a driver has no use for are refused by it.

    pin_cores: worker i runs on core pin_cores[i % len]; empty: the scheduler decides.
    fifo_priority: SCHED_FIFO priority of the workers, 1..99; 0: the default policy.
    lock_memory: mlock arena, weights and state. huge_pages: ask for transparent huge pages for arena and state.
    queue_slots: runs in flight at most, a power of two. spin_count: pauses before a worker, awaiting another, sleeps.
    spin_us: how long an idle worker, and who waits for a fence, looks before it sleeps; 0: not at all. A worker with a
    fifo_priority does not: it would keep from its core whoever is to submit.
    device: which of several devices of the driver, by its name in `devices()`; empty: the only one.
    """

    pin_cores: tuple[int, ...] = ()
    fifo_priority: int = 0
    lock_memory: bool = False
    huge_pages: bool = False
    queue_slots: int = 16
    spin_count: int = 4000
    spin_us: int = 50
    device: str = ""


DRIVERS = ("cpu", "opencl", "hcq", "cuda")
LIBRARIES = {"opencl": "OpenCL", "hcq": "c", "cuda": "cuda"}
"""By driver, the system library (lib….so) that opening it maps; drivers that are not named map none."""


def open_accelerator(name: str, options: DeviceOptions | None = None) -> Accelerator:
    """Open a device by its driver's name. Raises HalError UNKNOWN_DRIVER, or what the driver finds missing."""
    if name == "cpu":
        from hal.cpu import CpuAccelerator  # noqa: PLC0415 (a driver is loaded only where it is asked for)

        return CpuAccelerator(options or DeviceOptions())
    if name == "opencl":
        from hal.opencl import OpenClAccelerator  # noqa: PLC0415

        return OpenClAccelerator(options or DeviceOptions())
    if name == "hcq":
        from hal.hcq import HcqAccelerator  # noqa: PLC0415

        return HcqAccelerator(options or DeviceOptions())
    if name == "cuda":
        from hal.cuda import CudaAccelerator  # noqa: PLC0415

        return CudaAccelerator(options or DeviceOptions())
    raise HalError(HalCode.UNKNOWN_DRIVER, f"no driver {name!r}", expected=", ".join(DRIVERS),
                   todo="name one of these in the configuration")  # fmt: skip
