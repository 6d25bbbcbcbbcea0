"""The driver's view of cuda.h against NVIDIA's own, where the toolkit is installed: prototypes, numbers, a real cubin.

It needs no GPU. FENCED_CUDA_HOME names the toolkit's folder; /usr/local/cuda where it is not set.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from hal import cuda_api
from hal.cuda_api import ATTRIBUTES
from hal.cuda_code import check_cubin
from hal.error import HalCode, HalError

HOME = Path(os.environ.get("FENCED_CUDA_HOME", "/usr/local/cuda"))
HEADER, COMPILER = HOME / "include" / "cuda.h", HOME / "bin" / "nvcc"
KERNEL = """extern "C" __global__ void widen(float* o, const unsigned char* a) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; o[i] = a[i]; }"""
SCALARS = {
    "int": ctypes.c_int, "CUresult": ctypes.c_int, "CUdevice": ctypes.c_int, "CUdevice_attribute": ctypes.c_int,
    "CUfunction_attribute": ctypes.c_int, "unsigned int": ctypes.c_uint, "unsigned char": ctypes.c_ubyte,
    "size_t": ctypes.c_size_t, "unsigned long long": ctypes.c_uint64, "CUdeviceptr": ctypes.c_uint64,
}  # fmt: skip
NUMBERS = {
    "CUDA_ERROR_NOT_READY": cuda_api.NOT_READY,
    "CU_CTX_SCHED_BLOCKING_SYNC": cuda_api.CTX_SCHED_BLOCKING_SYNC,
    "CU_CTX_MAP_HOST": cuda_api.CTX_MAP_HOST,
    "CU_STREAM_NON_BLOCKING": cuda_api.STREAM_NON_BLOCKING,
    "CU_EVENT_BLOCKING_SYNC": cuda_api.EVENT_BLOCKING_SYNC,
    "CU_MEMHOSTREGISTER_PORTABLE": cuda_api.REGISTER_PORTABLE,
    "CU_MEMHOSTREGISTER_DEVICEMAP": cuda_api.REGISTER_DEVICEMAP,
    "CU_MEMHOSTREGISTER_READ_ONLY": cuda_api.REGISTER_READ_ONLY,
    "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": cuda_api.FUNC_MAX_THREADS_PER_BLOCK,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": ATTRIBUTES["processors"],
    "CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY": ATTRIBUTES["can_map_host"],
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": ATTRIBUTES["major"],
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": ATTRIBUTES["minor"],
    "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED": ATTRIBUTES["host_register"],
    "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED": ATTRIBUTES["read_only_register"],
}


@cache
def header() -> str:
    """cuda.h without its comments."""
    if not HEADER.is_file():
        pytest.skip(f"{HEADER} is missing: install NVIDIA's toolkit, or name its folder in FENCED_CUDA_HOME")
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", HEADER.read_text(errors="replace"), flags=re.DOTALL)


def declared(name: str) -> list[type]:
    """The parameters that cuda.h declares for a function, as ctypes; by the name that a macro gives it, or its own."""
    spelt = re.search(rf"^#define (cu\w+)\s+(?:__CUDA_API_PT[DS][SZ]\()?{name}\)?$", header(), re.MULTILINE)
    found = re.search(rf"\bCUDAAPI {spelt[1] if spelt else name}\(([^)]*)\)", header())
    assert found, f"cuda.h declares no {name}"
    return [_kind(parameter) for parameter in found[1].split(",")]


def _kind(parameter: str) -> type:
    words = re.sub(r"\bconst\b", "", parameter).strip()
    if "*" in words:
        return ctypes.c_void_p
    spelt = re.sub(r"\s*\b\w+$", "", words) or words  # without the parameter's name
    handle = re.fullmatch(r"CU(context|module|function|stream|event|graph|graphExec|graphNode)", spelt)
    return ctypes.c_void_p if handle else SCALARS[spelt]


@pytest.mark.parametrize("name", cuda_api._PROTOTYPES)
def test_a_prototype_is_cuda_hs(name: str) -> None:
    given = [ctypes.c_void_p if one is ctypes.c_char_p else one for one in cuda_api._PROTOTYPES[name]]
    assert given == declared(name)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_cuda_hs(name: str) -> None:
    found = re.search(rf"\b{name}\s*(?:=\s*)?(0x[0-9a-fA-F]+|\d+)\b", header())
    assert found, name
    assert int(found[1], 0) == NUMBERS[name]


def test_a_kernel_nodes_parameters_lie_where_cuda_h_puts_them(tmp_path: Path) -> None:
    header()
    fields = {"func": "func", "grid": "gridDimX", "block": "blockDimX", "shared_bytes": "sharedMemBytes",
              "params": "kernelParams", "extra": "extra"}  # fmt: skip
    struct = "CUDA_KERNEL_NODE_PARAMS_v1"
    checks = [f'_Static_assert(sizeof({struct}) == {ctypes.sizeof(cuda_api.KernelNodeParams)}, "");']
    for ours, theirs in fields.items():
        at = getattr(cuda_api.KernelNodeParams, ours).offset
        checks.append(f'_Static_assert(offsetof({struct}, {theirs}) == {at}, "{theirs}");')
    source = tmp_path / "layout.c"
    source.write_text("#include <stddef.h>\n#include <cuda.h>\n" + "\n".join(checks) + "\n")
    from lab.compile.toolchain import zig_path  # noqa: PLC0415

    command = [str(zig_path()), "cc", "-c", "-I", str(HEADER.parent), "-o", str(tmp_path / "layout.o"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_real_cubin_is_taken_and_a_cut_one_is_not(tmp_path: Path) -> None:
    if not COMPILER.is_file():
        pytest.skip(f"{COMPILER} is missing: install NVIDIA's toolkit, or name its folder in FENCED_CUDA_HOME")
    (tmp_path / "kernel.cu").write_text(KERNEL)
    command = [str(COMPILER), "-cubin", "-arch=sm_90", "-o", "kernel.cubin", "kernel.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nvcc does not compile here: {done.stderr.strip()[-200:]}")
    code = memoryview((tmp_path / "kernel.cubin").read_bytes())
    check_cubin(code, "kernel")
    for size_bytes in (len(code) - 1, len(code) // 2, 65, 10):
        with pytest.raises(HalError) as refused:
            check_cubin(code[:size_bytes], "kernel")
        assert refused.value.code is HalCode.CODE
