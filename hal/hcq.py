"""The HCQ driver: graphs as hardware queues of a GPU that tinygrad drives without a vendor's runtime (AMD, NV, QCOM).

Every entrypoint is one queue of commands, bound at load; a run patches the addresses and the timeline values in it and
is submitted by one write to the device's doorbell. A fence follows the device's own timeline signal. Nothing is
compiled: the code blob holds each kernel's binary for exactly one architecture. A kernel cannot be interrupted: a reset
waits until the device is at rest, and where it does not come to rest, or has reported a fault, the process must exit.
"""

from __future__ import annotations

from hal.accelerator import DeviceBuffer, DeviceOptions, Module, Properties
from hal.admit import Admission, Target
from hal.driver import CPU_OPTIONS, Driver, refuse_options
from hal.error import HalCode, HalError
from hal.hcq_device import HcqDevice
from hal.hcq_executable import HcqExecutable
from hal.hcq_memory import HcqBuffer, HostMemories
from hal.memory import Mapping


class HcqAccelerator(Driver[HcqExecutable]):
    """One HCQ device. `DeviceOptions.device` is "AMD:0" and the like, or empty for the only one.

    Closing unloads everything; the process keeps the GPU open until it ends.
    """

    name = "hcq"
    kind = HcqExecutable
    failure_is_final = True

    def __init__(self, options: DeviceOptions) -> None:
        super().__init__()
        refuse_options(options, CPU_OPTIONS, "an HCQ device")
        self._device = HcqDevice(options.device.partition(" ")[0])
        if self._device.count > 1 and not options.device:
            listed = "; ".join(self._device.names)
            raise HalError(HalCode.DRIVER_UNAVAILABLE, "the GPU is not certain", expected="one GPU, or one named",
                           found=listed, todo="name one of these in DeviceOptions.device")  # fmt: skip
        self._memories = HostMemories(self._device)
        self._slots = options.queue_slots

    def devices(self) -> tuple[str, ...]:
        return self._device.names

    def properties(self) -> Properties:
        device = self._device
        units = int(getattr(device.raw, "cu_cnt", 1))
        return Properties("hcq", device.identity, device.arch, (), device.count, units, device.clock_name)

    def _target(self) -> Target:
        return Target("hcq", self._device.arch)

    def _make(self, module: Module, admission: Admission) -> HcqExecutable:
        return HcqExecutable(module, admission, self._device, self._memories, self._slots)

    def _share(self, mapping: Mapping, *, writable: bool) -> DeviceBuffer:
        return HcqBuffer.over(self._device, self._memories.of(mapping), mapping, writable=writable)

    def _abandon(self) -> None:
        self._device.abandon()
