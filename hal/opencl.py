"""The OpenCL driver: graphs as program binaries on an in-order queue, with fences that follow the device's events.

tinygrad's OpenCL bindings speak to the installed driver; nothing is compiled here, the code blob holds binaries for
exactly this device and driver version. Every loaded module has a queue, a timeline and a thread that waits for its
events. OpenCL cannot interrupt a kernel: a reset waits until the device is at rest and then rebuilds the context; where
a kernel does not end (on a CPU it would go on writing to host memory) the reset says so, for the process to exit.
"""

from __future__ import annotations

import platform
import threading
import time

from hal.accelerator import DeviceBuffer, DeviceOptions, Module, Properties
from hal.admit import Admission, Target
from hal.clock import ClockMap
from hal.driver import CPU_OPTIONS, EXIT, Driver, refuse_options
from hal.error import HalCode, HalError
from hal.memory import PAGE_BYTES, Mapping
from hal.opencl_api import OpenClApi
from hal.opencl_device import Sharing, find_device, list_devices
from hal.opencl_environment import prepare_environment
from hal.opencl_executable import OpenClExecutable
from hal.opencl_memory import OpenClBuffer, OpenClContext, shares_directly


class OpenClAccelerator(Driver[OpenClExecutable]):
    """One OpenCL device. sharing: how host memory is shared; None asks the device (`hal.opencl_device`)."""

    name = "opencl"
    kind = OpenClExecutable

    def __init__(self, options: DeviceOptions, sharing: Sharing | None = None) -> None:
        super().__init__()
        refuse_options(options, CPU_OPTIONS, "an OpenCL device")
        prepare_environment()
        self._api = OpenClApi()
        self._device = find_device(self._api, options.device)
        self._context = OpenClContext(self._api, self._device, sharing or self._device.sharing)
        if self._context.sharing is Sharing.DIRECT and not shares_directly(self._context):
            self._context.sharing = Sharing.MAPPED
        self._clock = ClockMap()
        self._slots = options.queue_slots
        self._building = self._context_gate = threading.Lock()  # between programs built in the context and a new one

    def devices(self) -> tuple[str, ...]:
        """Identities of every OpenCL device that the installed drivers list now."""
        return tuple(one.identity for one in list_devices(self._api))

    def properties(self) -> Properties:
        device = self._device
        return Properties("opencl", device.identity, platform.machine(), device.extensions, device.count,
                          device.compute_units, device.clock)  # fmt: skip

    def reset(self, deadline_ns: int) -> None:
        """Wait for rest, then rebuild the context and everything in it; buffers bound before stay usable."""
        if not self._context_gate.acquire(timeout=max(0, deadline_ns - time.monotonic_ns()) / 1e9):
            what = "another module is being loaded into the context"
            raise HalError(HalCode.RESET_IMPOSSIBLE, what, todo=EXIT)
        try:
            super().reset(deadline_ns)
        finally:
            self._context_gate.release()

    def _target(self) -> Target:
        return Target("opencl", platform.machine(), memory_bytes=self._device.memory_bytes)

    def _make(self, module: Module, admission: Admission) -> OpenClExecutable:
        return OpenClExecutable(module, admission, self._context, self._clock, self._slots)

    def _share(self, mapping: Mapping, *, writable: bool) -> DeviceBuffer:
        if not writable and mapping.address % PAGE_BYTES:
            raise HalError(HalCode.ALIGNMENT, "a frame is not page aligned", expected=f"a multiple of {PAGE_BYTES}",
                           found=hex(mapping.address))  # fmt: skip
        with self._gate:
            return OpenClBuffer.over(self._context, mapping, 0, mapping.size_bytes, writable=writable)

    def _renew(self) -> None:
        for executable in self._executables:
            executable.release()
        self._context.close()
        self._context.open()
        for executable in self._executables:
            executable.rebuild()

    def _close(self) -> None:
        self._context.close()
