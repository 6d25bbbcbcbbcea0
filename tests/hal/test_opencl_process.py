"""The OpenCL driver in processes of its own: what it loads, what it never starts, and a kernel that never ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from abi.graph import encode
from hal.error import HalError
from hal.opencl_environment import prepare_environment
from tests.conformance import subject
from tests.support import opencl

# Denies execve(2), execveat(2), fork(2) and vfork(2) from here on, by seccomp(2): offsets and codes of linux/seccomp.h,
# linux/filter.h. Threads (clone, clone3) stay allowed. And memory that was writable never becomes executable
# (PR_SET_MDWE, Linux 6.3), as MemoryDenyWriteExecute has it.
NO_EXEC = """
import ctypes, errno, struct
def op(code, jump_true, jump_false, k): return struct.pack("<HBBI", code, jump_true, jump_false, k)
calls = {"x86_64": (59, 322, 57, 58), "aarch64": (221, 281)}[__import__("platform").machine()]
program = op(0x20, 0, 0, 0)
for left, call in zip(range(len(calls), 0, -1), calls): program += op(0x15, left, 0, call)
program += op(0x06, 0, 0, 0x7FFF0000) + op(0x06, 0, 0, 0x00050000 | errno.EPERM)
held = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
fprog = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(held))
mdwe = libc.prctl(65, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(fprog), 0, 0) == 0, ctypes.get_errno()
"""
RUN = """
import hashlib, json, os, pathlib, sys, time
import numpy as np
from abi.graph import decode
from hal.accelerator import Module, open_accelerator
from hal.error import HalError
folder = pathlib.Path(sys.argv[1])
before = set(sys.modules)
accelerator = open_accelerator("opencl")
parts = [memoryview((folder / name).read_bytes()) for name in ("graph", "code", "weights")]
executable = accelerator.load(Module(decode(parts[0]), parts[1], parts[2]))
def submit(entrypoint, first_word):
    bindings = executable.bindings(entrypoint)
    frame = accelerator.allocate("frame", bindings.graph.buffers[0].size_bytes)
    frame.view[:4] = first_word.to_bytes(4, "little")
    bindings.bind_frame(0, frame)
    output = accelerator.allocate("output", bindings.output_bytes()[0])
    bindings.bind_output(0, output)
    return accelerator.submit(executable, bindings), output
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    opencl.require_device()
    folder, module = tmp_path_factory.mktemp("parts"), opencl.module(budget_ns=50_000_000)
    (folder / "graph").write_bytes(encode(module.graph))
    (folder / "code").write_bytes(module.code)
    (folder / "weights").write_bytes(module.weights)
    return folder


def run(code: str, parts: Path, **environment: str) -> Any:
    """The JSON that the child prints as its last line; it must exit 0."""
    command = [sys.executable, "-c", code, str(parts)]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_bundles_binary_runs_where_nothing_can_be_started_and_nothing_written_be_executed(parts: Path) -> None:
    code = (
        NO_EXEC
        + RUN
        + """
fence, output = submit(0, 7)
assert fence.wait(time.monotonic_ns() + 20_000_000_000).name == "SIGNALED", fence.error
try:
    os.execv("/bin/true", ["true"])
except PermissionError:
    denied = True
accelerator.close()
kernel = tuple(map(int, os.uname().release.split(".")[:2]))
print(json.dumps([float(np.frombuffer(output.view, np.float32)[0]), denied, mdwe or kernel < (6, 3)]))
"""
    )
    assert run(code, parts) == [0.0, True, True]  # 7 + 1 + 2 - 10


def test_nothing_of_tinygrad_is_loaded_but_its_bindings(parts: Path) -> None:
    code = (
        RUN
        + """
fence, output = submit(0, 7)
fence.wait(time.monotonic_ns() + 20_000_000_000)
accelerator.close()
print(json.dumps(sorted(name for name in set(sys.modules) - before if not name.startswith("hal."))))
"""
    )
    loaded = run(code, parts)
    names = ("tinygrad", "pickle", "sqlite3", "subprocess", "socket", "multiprocessing", "lab")
    assert [name for name in loaded if name.partition(".")[0] in names] == []
    assert len(loaded) < 20, loaded


def test_a_kernel_that_never_ends_is_a_hang_that_no_reset_cures(parts: Path) -> None:
    code = (
        RUN
        + """
fence, output = submit(1, 0xFFFFFFFF)
behind, _ = submit(1, 1)
while accelerator.check(time.monotonic_ns()) is None:
    fence.wait(time.monotonic_ns() + 5_000_000)
seen = [fence.poll().name, fence.error.code.value, fence.quiet, behind.poll().name]
refusals = []
for act in (lambda: submit(1, 1), lambda: accelerator.reset(time.monotonic_ns() + 200_000_000), accelerator.close):
    try:
        act()
    except HalError as error:
        refusals.append(error.code.value)
print(json.dumps([seen, refusals]), flush=True)
os._exit(0)
"""
    )
    seen, refusals = run(code, parts)
    assert seen == ["ERROR", "device-hang", False, "ERROR"]
    assert refusals == ["device-latched", "reset-impossible", "device-hang"]


def test_variables_that_choose_libraries_are_taken_away_and_the_binary_folder_is_new(
    parts: Path, tmp_path: Path
) -> None:
    left_over = tmp_path / "fenced-opencl-999999999-dead"
    left_over.mkdir()
    code = (
        RUN
        + """
folder = os.environ["POCL_CACHE_DIR"]
kept = sorted(name for name in os.environ if name.startswith(("OCL_ICD_", "OPENCL_", "POCL_")))
print(json.dumps([kept, folder, oct(os.stat(folder).st_mode & 0o777)]))
accelerator.close()
"""
    )
    kept, folder, mode = run(
        code, parts, POCL_CACHE_DIR=str(tmp_path), OCL_ICD_VENDORS="/nowhere", OPENCL_PATH="/nowhere", POCL_DEBUG="all"
    )
    assert kept == ["POCL_CACHE_DIR"]
    assert Path(folder).parent == tmp_path
    assert mode == "0o700"
    assert list(tmp_path.iterdir()) == []  # the child's own was removed at its exit, the dead process's before


def test_a_binary_folder_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    with pytest.raises(HalError, match="others cannot write"):
        prepare_environment.__wrapped__()
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "absent"))
    with pytest.raises(HalError, match="no folder"):
        prepare_environment.__wrapped__()


def test_a_binary_folder_that_no_code_can_be_mapped_from_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    real = os.statvfs(tmp_path)
    noexec = os.statvfs_result((*real[:8], real.f_flag | os.ST_NOEXEC, *real[9:]))
    monkeypatch.setattr(os, "statvfs", lambda path: noexec)
    with pytest.raises(HalError, match="noexec"):
        prepare_environment.__wrapped__()
    assert list(tmp_path.iterdir()) == []


def test_the_subject_has_the_entrypoints_this_file_names() -> None:
    assert (subject.RUN, subject.LONG) == (0, 1)
