"""Which GPU there is, what it is, its context, and the environment that the vendor's driver reads.

Nothing is guessed: a machine with several GPUs needs one named. The driver would load libraries, compile PTX and write
a cache as the environment says; it is told not to before it is opened.
"""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import dataclass

from hal.cuda_api import ATTRIBUTES, CTX_MAP_HOST, CTX_SCHED_BLOCKING_SYNC, CudaApi, unavailable

_KEPT = ("CUDA_VISIBLE_DEVICES",)
_SET = {
    "CUDA_DISABLE_PTX_JIT": "1",  # what is no binary for this GPU is refused, not compiled
    "CUDA_CACHE_DISABLE": "1",
    "CUDA_MODULE_LOADING": "EAGER",  # everything is loaded by `load`, nothing by the first run
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
_NAME_BYTES = 256


def prepare_environment() -> None:
    """Takes out what could make the driver load, compile or write; to be called before it is opened."""
    for name in [name for name in os.environ if name.startswith(("CUDA_", "NVTX_")) and name not in _KEPT]:
        del os.environ[name]
    os.environ.update(_SET)


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A GPU. identity: number and name, as `devices()` lists it. arch: "sm_90" and the like.

    registers_read_only: whether pages that we may only read can be used in place.
    """

    ordinal: int
    identity: str
    arch: str
    processors: int
    memory_bytes: int
    registers_read_only: bool


def list_devices(api: CudaApi) -> list[CudaDevice]:
    """Every GPU that the driver shows, in the order of the bus."""
    return [_describe(api, index) for index in range(api.number("cuDeviceGetCount"))]


def find_device(api: CudaApi, name: str = "") -> CudaDevice:
    """The GPU of this identity, or the only one. Raises HalError DRIVER_UNAVAILABLE."""
    devices = list_devices(api)
    if not devices:
        raise unavailable("no GPU", "0 devices", "check the driver and /dev/nvidia*")
    chosen = [one for one in devices if name in ("", one.identity)]
    if len(chosen) != 1:
        listed = "; ".join(one.identity for one in devices)
        raise unavailable("the GPU is not certain", listed, "name one of these in DeviceOptions.device")
    return chosen[0]


def _describe(api: CudaApi, index: int) -> CudaDevice:
    ordinal = api.number("cuDeviceGet", index)
    raw = ctypes.create_string_buffer(_NAME_BYTES)
    api.call("cuDeviceGetName", ctypes.addressof(raw), _NAME_BYTES, ordinal)
    name = "".join(one if " " <= one <= "~" else "?" for one in raw.value.decode("ascii", "replace")).strip()
    told = {what: api.number("cuDeviceGetAttribute", number, ordinal) for what, number in ATTRIBUTES.items()}
    if not (told["can_map_host"] and told["host_register"]):
        raise unavailable(f"{name} cannot use host memory in place", "no host registration", "use another driver")
    return CudaDevice(
        ordinal=ordinal,
        identity=f"CUDA:{index} {name}"[:128],
        arch=f"sm_{told['major']}{told['minor']}",
        processors=told["processors"],
        memory_bytes=api.make("cuDeviceTotalMem_v2", ordinal),
        registers_read_only=bool(told["read_only_register"]),
    )


class CudaContext:
    """The GPU's context, one for each accelerator. Whoever calls the driver `enter`s it first, on any thread."""

    def __init__(self, api: CudaApi, device: CudaDevice) -> None:
        self.api, self.device = api, device
        self.handle = api.make("cuCtxCreate_v2", CTX_SCHED_BLOCKING_SYNC | CTX_MAP_HOST, device.ordinal)
        self.lock = threading.RLock()  # held while memory is registered or given back

    def enter(self) -> None:
        """Makes it the calling thread's own."""
        self.api.call("cuCtxSetCurrent", self.handle)

    def copy_in(self, stream: int, target: int, source: int, size_bytes: int) -> None:
        """Enqueue a copy of host bytes to the device; in the order of the stream."""
        self.api.call("cuMemcpyHtoDAsync_v2", target, source, size_bytes, stream)

    def close(self) -> None:
        if self.handle:
            self.api.call("cuCtxDestroy_v2", self.handle)
            self.handle = 0
