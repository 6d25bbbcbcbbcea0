"""tinygrad's OpenCL bindings, loaded alone, and its calls with every status checked.

Only two files of tinygrad are run: `runtime/autogen/opencl.py`, which is data (prototypes and constants), and
`runtime/support/c.py`, its ctypes helper. They see empty stand-ins for the packages around them, so neither the
tensor library nor pickle, sqlite or subprocess come along, and whatever else is called tinygrad in the process is left
as it was. Handles are plain integers. All symbols are resolved here, before a guarded process is sealed.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hal.error import HalCode, HalError

# Short calls only put work into a queue or read a value; they keep the interpreter lock, so that a submit of many
# launches is not interleaved with other threads. Calls that may wait give it up.
SHORT_CALLS = (
    "clSetKernelArg", "clEnqueueNDRangeKernel", "clFlush", "clGetEventInfo", "clGetEventProfilingInfo",
    "clReleaseEvent", "clRetainEvent", "clEnqueueMarkerWithWaitList",
)  # fmt: skip
LONG_CALLS = (
    "clGetPlatformIDs", "clGetPlatformInfo", "clGetDeviceIDs", "clGetDeviceInfo", "clCreateContext",
    "clReleaseContext", "clCreateCommandQueue", "clReleaseCommandQueue", "clCreateBuffer", "clCreateSubBuffer",
    "clReleaseMemObject", "clCreateProgramWithBinary", "clCreateProgramWithSource", "clBuildProgram",
    "clCompileProgram", "clLinkProgram", "clGetProgramInfo", "clGetProgramBuildInfo", "clReleaseProgram",
    "clCreateKernel", "clGetKernelInfo", "clGetKernelWorkGroupInfo", "clReleaseKernel", "clWaitForEvents", "clFinish",
    "clEnqueueMapBuffer", "clEnqueueUnmapMemObject", "clEnqueueReadBuffer", "clEnqueueWriteBuffer",
    "clEnqueueFillBuffer",
)  # fmt: skip
_MADE_HERE = (*(name for name in LONG_CALLS if name.startswith("clCreate")), "clLinkProgram", "clEnqueueMapBuffer")
_OUT_OF_MEMORY = ("CL_MEM_OBJECT_ALLOCATION_FAILURE", "CL_OUT_OF_RESOURCES", "CL_OUT_OF_HOST_MEMORY")
_BAD_CODE = ("CL_INVALID_BINARY", "CL_BUILD_PROGRAM_FAILURE", "CL_INVALID_KERNEL_NAME", "CL_COMPILE_PROGRAM_FAILURE",
             "CL_LINK_PROGRAM_FAILURE", "CL_INVALID_PROGRAM_EXECUTABLE")  # fmt: skip
_STUBS = ("tinygrad", "tinygrad.helpers", "tinygrad.runtime", "tinygrad.runtime.support", "tinygrad.runtime.autogen")
_loading = threading.Lock()


class OpenClApi:
    """The calls. `call` raises for a status other than CL_SUCCESS; `make` returns the handle that a call creates.

    `constant(name)` is a value of cl.h. `raw(name)` is the checked-by-nobody function for hot paths and fences.
    """

    def __init__(self) -> None:
        bindings = load_bindings()
        self._constants: dict[str, int] = {
            name: value for name, value in vars(bindings).items() if name.startswith("CL_") and isinstance(value, int)
        }
        self._errors = {
            value: name for name, value in self._constants.items() if value < 0 and not name.startswith("CL_DEVICE_")
        }
        self._calls: dict[str, Callable[..., Any]] = {}
        for name in (*SHORT_CALLS, *LONG_CALLS):
            self._calls[name] = _resolve(bindings, name)

    def constant(self, name: str) -> int:
        return self._constants[name]

    def raw(self, name: str) -> Callable[..., Any]:
        return self._calls[name]

    def call(self, name: str, *arguments: Any) -> None:
        """Call and check. Raises HalError OUT_OF_MEMORY, CODE or DEVICE_LOST."""
        status = self._calls[name](*arguments)
        if status:
            raise self.error(name, status)

    def make(self, name: str, *arguments: Any) -> int:
        """Call a function whose last parameter takes the status and whose result is a handle."""
        status = ctypes.c_int32()
        handle = self._calls[name](*arguments, ctypes.addressof(status))
        if status.value or not handle:
            raise self.error(name, status.value)
        return int(handle)

    def error(self, name: str, status: int) -> HalError:
        """What a failed call means, as the HAL's error."""
        text = self.status_name(status)
        if text in _OUT_OF_MEMORY:
            return HalError(HalCode.OUT_OF_MEMORY, f"{name} failed", found=text, todo="free device memory")
        if text in _BAD_CODE:
            return HalError(HalCode.CODE, f"{name} refused the code", found=text,
                            todo="compile the model for this device and driver version")  # fmt: skip
        return HalError(HalCode.DEVICE_LOST, f"{name} failed", found=text, todo="reset the device")

    def status_name(self, status: int) -> str:
        """CL_… for a status or event error."""
        return self._errors.get(status, f"OpenCL status {status}")

    def info(self, name: str, what: str, *handles: int) -> bytes:
        """The bytes that a `clGet…Info` call answers for the constant `what`."""
        size = ctypes.c_size_t()
        self.call(name, *handles, self.constant(what), 0, None, ctypes.addressof(size))
        answer = ctypes.create_string_buffer(max(1, size.value))
        self.call(name, *handles, self.constant(what), size.value, ctypes.addressof(answer), None)
        return answer.raw[: size.value]


@cache
def load_bindings() -> ModuleType:
    """tinygrad's `runtime.autogen.opencl` in a module of its own; one a process, for its types are never freed.

    Raises HalError DRIVER_UNAVAILABLE where tinygrad or the OpenCL loader library is missing.
    """
    spec = find_spec("tinygrad")
    if spec is None or spec.origin is None:
        raise _unavailable("tinygrad is not installed", "install fenced with its [accelerator] extra")
    runtime = Path(spec.origin).parent / "runtime"
    with _loading:  # other threads must not see the stand-ins: device drivers are opened at start, before threads
        before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "tinygrad"}
        for name in before:
            del sys.modules[name]
        try:
            sys.modules.update({name: _stub(name) for name in _STUBS})
            _run("tinygrad.runtime.support.c", runtime / "support" / "c.py")
            bindings = _run("tinygrad.runtime.autogen.opencl", runtime / "autogen" / "opencl.py")
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == "tinygrad"]:
                del sys.modules[name]
            sys.modules.update(before)
    if bindings.dll.nm not in bindings.dll._loaded_:
        raise _unavailable(
            "the OpenCL loader library is missing", "install libOpenCL.so.1 (Debian: ocl-icd-libopencl1)"
        )
    return bindings


def _run(name: str, path: Path) -> ModuleType:
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise _unavailable(f"this tinygrad has no {path.name}", "install the pinned version, tinygrad 0.14.0")
    module = module_from_spec(spec)
    sys.modules[name] = module
    setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    spec.loader.exec_module(module)
    return module


def _stub(name: str) -> ModuleType:
    """An empty stand-in for a tinygrad package; `helpers` holds what the two files take from it.

    `getenv` answers with the default: no environment variable chooses which library is loaded.
    """
    module = ModuleType(name)
    module.__path__ = []
    if name == "tinygrad.helpers":
        names = {"DEBUG": 0, "OSX": sys.platform == "darwin", "WIN": sys.platform == "win32"}
        vars(module).update(names, ceildiv=lambda a, b: -(a // -b), getenv=lambda key, default=0: default)
    return module


def _resolve(bindings: ModuleType, name: str) -> Callable[..., Any]:
    """The function with pointers as integers, keeping the interpreter lock for SHORT_CALLS."""
    wrapper = getattr(bindings, name)
    prototype = ctypes.PYFUNCTYPE if name in SHORT_CALLS else ctypes.CFUNCTYPE
    arguments = [one if issubclass(one, ctypes._SimpleCData) else ctypes.c_void_p for one in wrapper.argtypes]
    result = ctypes.c_void_p if name in _MADE_HERE else ctypes.c_int32
    symbol = getattr(bindings.dll, name, None)
    if symbol is None:
        raise _unavailable(f"the OpenCL library has no {name}", "install an OpenCL 1.2 or later loader")
    address = ctypes.cast(symbol, ctypes.c_void_p).value
    assert address is not None
    function: Callable[..., Any] = prototype(result, *arguments)(address)
    return function


def _unavailable(what: str, todo: str) -> HalError:
    return HalError(HalCode.DRIVER_UNAVAILABLE, f"no OpenCL: {what}", found=platform.platform(terse=True), todo=todo)
