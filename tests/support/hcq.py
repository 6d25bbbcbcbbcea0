"""HCQ in tests: tinygrad's emulated AMD GPU, and the conformance subject as gfx1100 machine code.

The emulator is not in tinygrad's wheel: FENCED_TINYGRAD_CHECKOUT names a checkout of its repository, of the wheel's
version. Only its `test` and `extra` folders are used; the driver and tinygrad's own HCQ code are the wheel's. It
replaces `memoryview` in its process, so everything on it runs in child processes.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from abi.graph import Launch
from hal.accelerator import Module
from tests.conformance import subject

VARIABLE = "FENCED_TINYGRAD_CHECKOUT"
ARCH = "gfx1100"
ALIGN_BYTES = 256
GROUP = 32
ROOT = Path(__file__).resolve().parents[2]
_LEAST_LLVM = 18
_HEAD = """
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
define amdgpu_kernel void @{name}({arguments}) #0 {{
entry:
  %item = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %first = mul i32 %group, 32
  %index = add i32 %first, %item
  %i = zext i32 %index to i64
"""
_TAIL = """
  ret void
}
attributes #0 = { nounwind "amdgpu-flat-work-group-size"="1,32" "amdgpu-no-implicitarg-ptr" "amdgpu-no-dispatch-ptr" }
"""
_P = "ptr addrspace(1)"
_FLOAT_AT = "getelementptr float, " + _P
_BYTE = f"""  %ap = getelementptr i8, {_P} %a, i64 %i
  %ab = load i8, {_P} %ap
  %af = uitofp i8 %ab to float
"""
_STORE = f"""  %op = {_FLOAT_AT} %o, i64 %i
  store float %result, {_P} %op"""
# The loops are kept by an instruction that the compiler must not drop. The emulator ends a wave at a million of them.
_ROUNDS = f"""  %n = load i32, {_P} %a
  %none = icmp eq i32 %n, 0
  br i1 %none, label %done, label %loop
loop:
  %r = phi i32 [ 0, %entry ], [ %next, %ended ]
  br label %inner
inner:
  %t = phi i32 [ 0, %loop ], [ %tnext, %inner ]
  call void asm sideeffect "s_nop 0", ""()
  %tnext = add i32 %t, 1
  %tmore = icmp ult i32 %tnext, 1000
  br i1 %tmore, label %inner, label %ended
ended:
  %next = add i32 %r, 1
  %more = icmp ult i32 %next, %n
  br i1 %more, label %loop, label %done
done:
  %nf = uitofp i32 %n to float
  br label %fill
fill:
  %k = phi i32 [ %index, %done ], [ %step, %fill ]
  %kf = uitofp i32 %k to float
  %result = fadd float %nf, %kf
  %kl = zext i32 %k to i64
  %op = {_FLOAT_AT} %o, i64 %kl
  store float %result, {_P} %op
  %step = add i32 %k, 32
  %left = icmp ult i32 %step, {subject.COUNT}
  br i1 %left, label %fill, label %end
end:"""
_LOADED = f"""  %xp = {_FLOAT_AT} %{{from}}, i64 %i
  %x = load float, {_P} %xp
"""
KERNELS = {
    "widen": (f"{_P} %o, {_P} %a", _BYTE.replace("%af", "%result") + _STORE),
    "add": (f"{_P} %o, {_P} %a, i32 %n",
            _LOADED.format(**{"from": "a"}) + "  %nf = sitofp i32 %n to float\n"
            + "  %result = fadd float %x, %nf\n" + _STORE),
    "rounds": (f"{_P} %o, {_P} %a", _ROUNDS),
    "total": (f"{_P} %s, {_P} %o, {_P} %a", _BYTE + _LOADED.format(**{"from": "s"})
              + f"  %result = fadd float %x, %af\n  store float %result, {_P} %xp\n" + _STORE),
    "scale": (f"{_P} %o, {_P} %a, {_P} %k", _BYTE + f"  %g = load float, {_P} %k\n"
              + "  %result = fmul float %af, %g\n" + _STORE),
}  # fmt: skip
"""In the order of `subject.KERNELS`: arguments and body in LLVM's assembly."""


@cache
def why_not() -> str:
    """Why there is no emulated GPU here; empty where there is one."""
    checkout = os.environ.get(VARIABLE, "")
    if not checkout:
        return f"{VARIABLE} names no checkout of tinygrad's repository"
    if not (Path(checkout) / "test" / "mockgpu" / "mockgpu.py").is_file():
        return f"{VARIABLE}={checkout} has no test/mockgpu"
    if not any(ctypes.util.find_library(f"LLVM-{version}") for version in range(_LEAST_LLVM, 30)):
        return "no libLLVM of version 18 or later (Debian: libllvm19)"
    return ""


def require_emulator() -> None:
    """Skips the test where there is no emulator."""
    if why_not():
        pytest.skip(why_not())


@cache
def binaries() -> tuple[bytes, ...]:
    """KERNELS as machine code. Loads libLLVM and tinygrad's compiler for it."""
    from tinygrad.runtime.support.compiler_llvm import AMDLLVMCompiler  # noqa: PLC0415 (only where it is needed)

    compiler = AMDLLVMCompiler(ARCH)
    texts = [_HEAD.format(name=name, arguments=one[0]) + one[1] + _TAIL for name, one in KERNELS.items()]
    return tuple(compiler.compile(text) for text in texts)


def module(budget_ns: int = 5_000_000_000) -> Module:
    """`subject.module` for the emulated GPU: the same graph, kernels and entrypoints."""
    graph = subject.graph(1, budget_ns)
    code, programs = b"", []
    for program, name, binary in zip(graph.programs, KERNELS, binaries(), strict=True):
        programs.append(replace(program, symbol=name, code_offset=len(code), code_bytes=len(binary)))
        code += binary
    launches = tuple(replace(one, global_size=_groups(one), local_size=(GROUP, 1, 1)) for one in graph.launches)
    buffers = tuple(replace(one, align_bytes=ALIGN_BYTES) for one in graph.buffers)
    graph = replace(graph, driver="hcq", buffers=buffers, programs=tuple(programs), launches=launches)
    return Module(graph, memoryview(code), memoryview(bytes(subject.OUT_BYTES)))


def _groups(launch: Launch) -> tuple[int, int, int]:
    is_wide = list(KERNELS)[launch.program] != "rounds"
    return (subject.COUNT // GROUP if is_wide else 1, 1, 1)


def run(code: str, *arguments: str, vehicle: bool = True, **environment: str) -> Any:
    """The JSON that a child prints as its last line. `code` runs after the emulator's set-up; `gpu` is the emulator."""
    start = f"from tests.support import emulated_gpu\ngpu = emulated_gpu.start(vehicle={vehicle})\n"
    command = [sys.executable, "-c", start + code, *arguments]
    cleared = {name: value for name, value in os.environ.items() if name != "DEV"}
    done = subprocess.run(
        command, env=cleared | environment, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
