"""Builds OpenCL kernels in a process of its own: `python -m lab.compile.opencl_build FOLDER`.

FOLDER/program.cl is the source, FOLDER/launches.json every launch of its kernels; FOLDER/program.bin gets the binary.
A source that does not build ends the process with the compiler's words as the last line of stderr.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hal.error import HalError
from hal.opencl_api import OpenClApi
from hal.opencl_device import find_device
from hal.opencl_environment import prepare_environment

_LOG_LINES = 3


class Builder:
    """The device's compiler, and a queue to launch on."""

    def __init__(self) -> None:
        prepare_environment()
        self.api = OpenClApi()
        self.device = find_device(self.api).handle
        self._devices = ctypes.c_void_p(self.device)
        devices = ctypes.addressof(self._devices)
        self.context = self.api.make("clCreateContext", None, 1, devices, None, None)
        self.queue = self.api.make("clCreateCommandQueue", self.context, self.device, 0)
        self._zeros: dict[int, int] = {}

    def build(self, source: str, launches: Sequence[dict[str, Any]]) -> bytes:
        """The binary of a program, linked for each of the launches."""
        program = self._program(source)
        for launch in launches:
            entry = self.api.make("clCreateKernel", program, launch["symbol"].encode())
            self._launch(entry, launch)
            self.api.call("clReleaseKernel", entry)
        size = ctypes.c_size_t()
        sizes = self.api.constant("CL_PROGRAM_BINARY_SIZES")
        self.api.call("clGetProgramInfo", program, sizes, ctypes.sizeof(size), ctypes.addressof(size), None)
        binary = ctypes.create_string_buffer(size.value)
        at = ctypes.c_void_p(ctypes.addressof(binary))
        binaries = self.api.constant("CL_PROGRAM_BINARIES")
        self.api.call("clGetProgramInfo", program, binaries, ctypes.sizeof(at), ctypes.addressof(at), None)
        return binary.raw

    def _program(self, source: str) -> int:
        text = ctypes.create_string_buffer(source.encode())
        at = ctypes.c_void_p(ctypes.addressof(text))
        devices = ctypes.addressof(self._devices)
        unit = self.api.make("clCreateProgramWithSource", self.context, 1, ctypes.addressof(at), None)
        if self.api.raw("clCompileProgram")(unit, 1, devices, None, 0, None, None, None, None):
            raise SystemExit("; ".join(self._log(unit)[:_LOG_LINES]))
        units = ctypes.c_void_p(unit)
        link = (self.context, 1, devices, None, 1, ctypes.addressof(units), None, None)
        return self.api.make("clLinkProgram", *link)

    def _log(self, program: int) -> list[str]:
        log = self.api.info("clGetProgramBuildInfo", "CL_PROGRAM_BUILD_LOG", program, self.device)
        lines = log.rstrip(b"\0").decode(errors="replace").splitlines()
        return [line for line in lines if "error" in line] or lines or ["the compiler says nothing"]

    def _launch(self, entry: int, launch: dict[str, Any]) -> None:
        """Runs on zeros: an index read from a buffer then stays inside it."""
        for position, size in enumerate(launch["buffer_bytes"]):
            handle = ctypes.c_void_p(self._zero_buffer(size))
            self.api.call("clSetKernelArg", entry, position, ctypes.sizeof(handle), ctypes.addressof(handle))
        for position, value in enumerate(launch["values"], len(launch["buffer_bytes"])):
            scalar = ctypes.c_int32(value)
            self.api.call("clSetKernelArg", entry, position, ctypes.sizeof(scalar), ctypes.addressof(scalar))
        local = (ctypes.c_size_t * 3)(*launch["items"])
        whole = (ctypes.c_size_t * 3)(*(g * i for g, i in zip(launch["groups"], launch["items"], strict=True)))
        sizes = (ctypes.addressof(whole), ctypes.addressof(local))
        self.api.call("clEnqueueNDRangeKernel", self.queue, entry, 3, None, *sizes, 0, None, None)
        self.api.call("clFinish", self.queue)

    def _zero_buffer(self, size: int) -> int:
        """Kernels may get one buffer for several arguments: what they compute here is thrown away."""
        if size not in self._zeros:
            flags = self.api.constant("CL_MEM_READ_WRITE")
            self._zeros[size] = self.api.make("clCreateBuffer", self.context, flags, size, None)
        zero = ctypes.c_uint8()
        fill = (self._zeros[size], ctypes.addressof(zero), 1, 0, size, 0, None, None)
        self.api.call("clEnqueueFillBuffer", self.queue, *fill)
        return self._zeros[size]


def main(folder: Path) -> None:
    source, launches = (folder / "program.cl").read_text(), json.loads((folder / "launches.json").read_text())
    try:
        (folder / "program.bin").write_bytes(Builder().build(source, launches))
    except HalError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(Path(sys.argv[1]))
