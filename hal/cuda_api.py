"""The CUDA driver's own interface, libcuda.so.1, with every status checked. Nothing of CUDA's toolkit is needed.

Prototypes and numbers are those of cuda.h (CUDA 12); handles are plain integers, results come back as values. All
symbols are resolved here, before a guarded process is sealed. Every call gives up the interpreter lock: the vendor's
driver has locks of its own, which a module that is being loaded on another thread may hold.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, Final

from hal.error import HalCode, HalError

LIBRARY: Final = "libcuda.so.1"
FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra", "/usr/lib64", "/usr/lib",
)  # fmt: skip
LEAST_VERSION: Final = 12040  # cuFuncGetParamInfo, without which a wrong argument list could not be refused
NOT_READY: Final = 600
CTX_SCHED_BLOCKING_SYNC, CTX_MAP_HOST = 4, 8
STREAM_NON_BLOCKING, EVENT_BLOCKING_SYNC = 1, 1
REGISTER_PORTABLE, REGISTER_DEVICEMAP, REGISTER_READ_ONLY = 1, 2, 8
FUNC_MAX_THREADS_PER_BLOCK = 0
ATTRIBUTES: Final = {
    "processors": 16, "can_map_host": 19, "major": 75, "minor": 76, "host_register": 99, "read_only_register": 113,
}  # fmt: skip
_INT, _U32, _SIZE, _U64, _AT = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p
_PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (_U32,),
    "cuDriverGetVersion": (_AT,),
    "cuGetErrorName": (_INT, _AT),
    "cuDeviceGetCount": (_AT,),
    "cuDeviceGet": (_AT, _INT),
    "cuDeviceGetName": (_AT, _INT, _INT),
    "cuDeviceGetAttribute": (_AT, _INT, _INT),
    "cuDeviceTotalMem_v2": (_AT, _INT),
    "cuCtxCreate_v2": (_AT, _U32, _INT),
    "cuCtxDestroy_v2": (_AT,),
    "cuCtxSetCurrent": (_AT,),
    "cuModuleLoadData": (_AT, _AT),
    "cuModuleUnload": (_AT,),
    "cuModuleGetFunction": (_AT, _AT, ctypes.c_char_p),
    "cuFuncGetAttribute": (_AT, _INT, _AT),
    "cuFuncGetParamInfo": (_AT, _SIZE, _AT, _AT),
    "cuMemAlloc_v2": (_AT, _SIZE),
    "cuMemFree_v2": (_U64,),
    "cuMemsetD8Async": (_U64, ctypes.c_ubyte, _SIZE, _AT),
    "cuMemcpyHtoDAsync_v2": (_U64, _AT, _SIZE, _AT),
    "cuMemcpyDtoHAsync_v2": (_AT, _U64, _SIZE, _AT),
    "cuMemHostRegister_v2": (_AT, _SIZE, _U32),
    "cuMemHostUnregister": (_AT,),
    "cuMemHostGetDevicePointer_v2": (_AT, _AT, _U32),
    "cuStreamCreate": (_AT, _U32),
    "cuStreamSynchronize": (_AT,),
    "cuStreamDestroy_v2": (_AT,),
    "cuEventCreate": (_AT, _U32),
    "cuEventRecord": (_AT, _AT),
    "cuEventQuery": (_AT,),
    "cuEventSynchronize": (_AT,),
    "cuEventElapsedTime": (_AT, _AT, _AT),
    "cuEventDestroy_v2": (_AT,),
    "cuGraphCreate": (_AT, _U32),
    "cuGraphAddKernelNode": (_AT, _AT, _AT, _SIZE, _AT),
    "cuGraphInstantiateWithFlags": (_AT, _AT, _U64),
    "cuGraphExecKernelNodeSetParams": (_AT, _AT, _AT),
    "cuGraphLaunch": (_AT, _AT),
    "cuGraphExecDestroy": (_AT,),
    "cuGraphDestroy": (_AT,),
}
_BAD_CODE = frozenset({200, 209, 218, 220, 221, 222, 223, 300, 500})  # invalid image, no binary for this GPU, PTX …
_OUT_OF_MEMORY = 2
_NOT_PERMITTED = frozenset({800, 801})


class KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v1 of cuda.h: 56 bytes."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
    )


class CudaApi:
    """The calls. `call` raises for any status but success, `make` also returns the handle, `raw` checks nothing."""

    def __init__(self, path: str | None = None) -> None:
        """Opens the library. Raises HalError DRIVER_UNAVAILABLE where it is missing or too old."""
        found = path or find_library()
        try:
            library = ctypes.CDLL(found)
        except OSError as error:
            raise unavailable(f"{found} cannot be opened", str(error), "install NVIDIA's driver") from error
        self._calls: dict[str, Callable[..., int]] = {}
        for name, arguments in _PROTOTYPES.items():
            function = getattr(library, name, None)
            if function is None:
                raise unavailable(f"the driver has no {name}", found, "install driver 550 (CUDA 12.4) or later")
            function.argtypes, function.restype = arguments, ctypes.c_int
            self._calls[name] = function
        self.call("cuInit", 0)
        version = self.number("cuDriverGetVersion")
        if version < LEAST_VERSION:
            raise unavailable("NVIDIA's driver is too old", str(version), "install driver 550 (CUDA 12.4) or later")

    def raw(self, name: str) -> Callable[..., int]:
        return self._calls[name]

    def call(self, name: str, *arguments: Any) -> None:
        """Raises HalError OUT_OF_MEMORY, CODE, NOT_PERMITTED or DEVICE_LOST."""
        status = self._calls[name](*arguments)
        if status:
            raise self.error(name, status)

    def make(self, name: str, *arguments: Any) -> int:
        """Call a function whose first parameter takes the handle (or address) that it makes."""
        cell = ctypes.c_uint64()
        self.call(name, ctypes.addressof(cell), *arguments)
        return cell.value

    def number(self, name: str, *arguments: Any) -> int:
        """Call a function whose first parameter takes an int."""
        cell = ctypes.c_int()
        self.call(name, ctypes.addressof(cell), *arguments)
        return cell.value

    def error(self, name: str, status: int) -> HalError:
        """What a failed call means, as the HAL's error."""
        text = self.status_name(status)
        if status == _OUT_OF_MEMORY:
            return HalError(HalCode.OUT_OF_MEMORY, f"{name} failed", found=text, todo="free device memory")
        if status in _BAD_CODE:
            return HalError(HalCode.CODE, f"{name} refused the code", found=text, todo="compile for this GPU")
        if status in _NOT_PERMITTED:
            return HalError(HalCode.NOT_PERMITTED, f"{name} is not permitted", found=text)
        return HalError(HalCode.DEVICE_LOST, f"{name} failed", found=text, todo="reset the device")

    def status_name(self, status: int) -> str:
        """CUDA_ERROR_… for a status."""
        cell = ctypes.c_char_p()
        if self._calls["cuGetErrorName"](status, ctypes.addressof(cell)) or cell.value is None:
            return f"CUDA status {status}"
        return cell.value.decode("ascii", "replace")


def find_library() -> str:
    """Where the vendor's library is. Raises HalError DRIVER_UNAVAILABLE."""
    for folder in FOLDERS:
        path = os.path.join(folder, LIBRARY)
        if os.path.exists(path):
            return path
    raise unavailable(f"{LIBRARY} is missing", f"none in {', '.join(FOLDERS)}", "install NVIDIA's driver")


def unavailable(what: str, found: str, todo: str) -> HalError:
    """The refusal of a machine without the device or its driver."""
    return HalError(HalCode.DRIVER_UNAVAILABLE, f"no CUDA: {what}", found=found, todo=todo)
