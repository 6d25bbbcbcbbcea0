"""Which OpenCL device there is, what it is, and how it shares memory with the host.

Nothing is guessed: a machine with several devices needs one named.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from enum import Enum

from hal.error import HalCode, HalError
from hal.opencl_api import OpenClApi


class Sharing(Enum):
    """How host and device see the same bytes.

    DIRECT: the device works in host memory, and both see each other's writes when a command has ended.
    MAPPED: the device may use host memory, between unmap and map (clEnqueueMapBuffer, OpenCL 1.2 §5.4.2).
    COPIED: the device has memory of its own; bytes are written to it before a run and read back after it.
    """

    DIRECT = "direct"
    MAPPED = "mapped"
    COPIED = "copied"


@dataclass(frozen=True, slots=True)
class OpenClDevice:
    """A device and what its driver says of it. `align_bytes`: of every buffer's start (CL_DEVICE_MEM_BASE_ADDR_ALIGN).

    identity: name and driver version; program binaries are good for exactly one identity.
    """

    handle: int
    identity: str
    vendor: str
    extensions: tuple[str, ...]
    compute_units: int
    align_bytes: int
    memory_bytes: int
    group_items: int
    sharing: Sharing
    clock: str
    count: int


def find_device(api: OpenClApi, name: str = "") -> OpenClDevice:
    """The device called `name` (its identity), or the only one. Raises HalError DRIVER_UNAVAILABLE."""
    devices = list_devices(api)
    if not devices:
        raise HalError(HalCode.DRIVER_UNAVAILABLE, "no OpenCL device", expected="one device and its installed driver",
                       todo="install the device's OpenCL driver (for the CPU: pocl-opencl-icd)")  # fmt: skip
    chosen = [one for one in devices if name in ("", one.identity)]
    if len(chosen) != 1:
        listed = "; ".join(one.identity for one in devices)
        raise HalError(HalCode.DRIVER_UNAVAILABLE, "the OpenCL device is not certain",
                       expected=repr(name) if name else "one device, or one named", found=listed,
                       todo="name one in DeviceOptions.device, or leave one driver in /etc/OpenCL/vendors")  # fmt: skip
    return chosen[0]


def list_devices(api: OpenClApi) -> list[OpenClDevice]:
    """Every device of every installed driver, in the loader's order."""
    handles = [device for one in _platforms(api) for device in _devices(api, one)]
    return [_describe(api, handle, len(handles)) for handle in handles]


def _platforms(api: OpenClApi) -> list[int]:
    count = ctypes.c_uint32()
    # the loader answers with an error of its own (CL_PLATFORM_NOT_FOUND_KHR) where no driver is registered
    if api.raw("clGetPlatformIDs")(0, None, ctypes.addressof(count)) or not count.value:
        return []
    handles = (ctypes.c_void_p * count.value)()
    api.call("clGetPlatformIDs", count.value, ctypes.addressof(handles), None)
    return [handle for handle in handles if handle]


def _devices(api: OpenClApi, platform_handle: int) -> list[int]:
    count, kind = ctypes.c_uint32(), api.constant("CL_DEVICE_TYPE_ALL")
    if api.raw("clGetDeviceIDs")(platform_handle, kind, 0, None, ctypes.addressof(count)) or not count.value:
        return []
    handles = (ctypes.c_void_p * count.value)()
    api.call("clGetDeviceIDs", platform_handle, kind, count.value, ctypes.addressof(handles), None)
    return [handle for handle in handles if handle]


def _describe(api: OpenClApi, handle: int, count: int) -> OpenClDevice:
    def text(what: str) -> str:
        raw = api.info("clGetDeviceInfo", what, handle).rstrip(b"\0")
        return "".join(one if " " <= one <= "~" else "?" for one in raw.decode("ascii", "replace")).strip()

    def number(what: str) -> int:
        return int.from_bytes(api.info("clGetDeviceInfo", what, handle), "little")

    is_cpu = bool(number("CL_DEVICE_TYPE") & api.constant("CL_DEVICE_TYPE_CPU"))
    is_pocl = "PoCL" in text("CL_DEVICE_VERSION")
    if is_pocl and is_cpu:  # its buffers over host memory are that memory; proved again by `OpenClMemory.probe`
        sharing = Sharing.DIRECT
    else:
        sharing = Sharing.MAPPED if number("CL_DEVICE_HOST_UNIFIED_MEMORY") else Sharing.COPIED
    return OpenClDevice(
        handle=handle,
        identity=f"{text('CL_DEVICE_NAME')}; {text('CL_DRIVER_VERSION')}"[:128],
        vendor=text("CL_DEVICE_VENDOR"),
        extensions=tuple(sorted(text("CL_DEVICE_EXTENSIONS").split())),
        compute_units=number("CL_DEVICE_MAX_COMPUTE_UNITS"),
        align_bytes=max(64, number("CL_DEVICE_MEM_BASE_ADDR_ALIGN") // 8),
        memory_bytes=number("CL_DEVICE_GLOBAL_MEM_SIZE"),
        group_items=number("CL_DEVICE_MAX_WORK_GROUP_SIZE"),
        sharing=sharing,
        clock="CLOCK_MONOTONIC_RAW" if is_pocl else f"{platform.machine()} OpenCL device clock",
        count=count,
    )
