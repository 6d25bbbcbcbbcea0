"""The HCQ driver under the guard: what is loaded with it, and that a sealed process loads and runs modules.

The first tests need no GPU and no emulator: opening ends, under the guard, at the device node that is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import hcq

ROOT = Path(__file__).resolve().parents[2]
OPEN = """
import sys
from daemon import guard
guard.install()
import json, os
acts = []
guard.on_violation(lambda act, detail: acts.append([act.value, detail]))
from hal.accelerator import LIBRARIES, open_accelerator
from hal.error import HalError
before = set(sys.modules)
with guard.opening(LIBRARIES["hcq"]):
    try:
        open_accelerator("hcq")
    except HalError as error:
        text = str(error)
loaded = sorted(set(sys.modules) - before)
"""
NODES = {"KFD+AMD": "/dev/kfd", "NVK+NV": "/dev/nvidiactl", "QCOM": "/dev/kgsl-3d0"}
RISKY = {"ftplib", "http", "multiprocessing", "pickle", "smtplib", "socket", "sqlite3", "subprocess", "tarfile",
         "urllib", "webbrowser", "xmlrpc", "zipfile", "torch", "onnx", "lab"}  # fmt: skip


GROUPS = {"codegen", "device", "dtype", "engine", "function", "helpers", "mixin", "nn", "renderer", "runtime",
          "schedule", "tensor", "uop"}  # fmt: skip
USED_OR_BURIED = {"engine.jit", "engine.realize", "engine.worker", "nn.datasets", "nn.optim", "nn.state"}
RUNTIME = {
    "autogen", "autogen.am", "autogen.am.am", "autogen.am.fw", "autogen.amdgpu_drm", "autogen.amdgpu_kd", "autogen.hsa",
    "autogen.kfd", "autogen.libc", "autogen.libusb", "autogen.pci", "autogen.sqtt", "autogen.vfio", "ops_amd",
    "support", "support.am", "support.am.amdev", "support.am.ip", "support.amd", "support.c", "support.elf",
    "support.hcq", "support.hcq2", "support.memory", "support.system", "support.usb",
}  # fmt: skip
"""No compiler (`support.compiler_…`), no other device (`ops_…`)."""


def opened_without_a_gpu(dev: str, code: str = "", **environment: str) -> Any:
    if Path(NODES[dev]).exists():
        pytest.skip(f"this machine has {NODES[dev]}")
    command = [sys.executable, "-c", OPEN + code + "\nprint(json.dumps([text, acts, loaded, dict(os.environ)]))"]
    done = subprocess.run(
        command, env=os.environ | {"DEV": dev} | environment, capture_output=True, text=True, timeout=120, check=False,
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("dev", NODES)
def test_opening_does_nothing_forbidden_and_ends_at_the_device_node(dev: str) -> None:
    text, acts, loaded, _ = opened_without_a_gpu(dev)
    assert text.startswith("driver-unavailable")
    assert NODES[dev] in text
    assert acts == []
    assert f"tinygrad.runtime.ops_{dev.rpartition('+')[2].lower()}" in loaded


def test_what_of_tinygrad_is_loaded_is_known() -> None:
    _, _, loaded, _ = opened_without_a_gpu("KFD+AMD")
    # what tinygrad imports at the head of its files, and the guard keeps from being used
    assert RISKY & {name.partition(".")[0] for name in loaded} <= {"pickle", "socket", "sqlite3", "subprocess"}
    ours = {name.removeprefix("tinygrad.") for name in loaded if name.startswith("tinygrad.")}
    assert {name.partition(".")[0] for name in ours} == GROUPS
    assert {name for name in ours if name.startswith(("engine.", "nn."))} == USED_OR_BURIED
    assert {name for name in ours if name.startswith("runtime.")} == {f"runtime.{name}" for name in RUNTIME}


def test_data_sets_and_worker_processes_are_replaced_by_what_refuses() -> None:
    tried = """
for name, member in (("tinygrad.nn.datasets", "mnist"), ("tinygrad.engine.worker", "get_worker_pool")):
    assert not hasattr(sys.modules[name], "__file__")
    try:
        getattr(sys.modules[name], member)()
    except HalError as error:
        text = str(error)
    else:
        text = "accepted"
    acts.append(text)
"""
    _, texts, _, _ = opened_without_a_gpu("KFD+AMD", tried)
    assert [text.partition(":")[0] for text in texts] == ["not-permitted", "not-permitted"]


def test_foreign_settings_are_taken_out_of_the_environment() -> None:
    foreign = {"REMOTE": "host:1", "LIBC_PATH": "/nowhere/libc.so", "PROFILE": "1", "AMD_AQL": "1", "VIZ": "1",
               "HCQ2": "1", "DEBUG": "7", "CACHEDB": "/tmp/x.db", "CC": "cc"}  # fmt: skip
    kept = {"LD_LIBRARY_PATH": "/nowhere", "HOME": "/nowhere"}
    text, acts, _, environment = opened_without_a_gpu("KFD+AMD", **foreign, **kept)
    assert NODES["KFD+AMD"] in text
    assert acts == []
    assert set(environment) & set(foreign) == set()
    assert kept.items() <= environment.items()
    assert (environment["ASSERT_COMPILE"], environment["CACHELEVEL"], environment["DEV"]) == ("1", "0", "KFD+AMD")


def test_compiling_is_an_error_in_such_a_process() -> None:
    tried = """
from tinygrad.device import Compiler
try:
    Compiler("key").compile_cached("source")
except AssertionError as error:
    text = str(error)
"""
    text, _, _, _ = opened_without_a_gpu("KFD+AMD", tried)
    assert text.startswith("tried to compile with ASSERT_COMPILE set")


SEALED = """
import json, os, sys, threading, time
from daemon import guard
from hal.accelerator import open_accelerator
from hal.conformance_rig import Rig, wait_done
from tests.conformance import subject
from tests.support import hcq
module, acts, seen = hcq.module(), [], []
watched = threading.current_thread()
def hook(event, arguments):
    started = event in ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.system", "socket.__new__")
    written = event == "open" and isinstance(arguments[2], int) and arguments[2] & 3
    if started or written or event == "ctypes.dlopen":
        seen.append([event, str(arguments)[:200]])
sys.addaudithook(hook)
accelerator = open_accelerator("hcq")
warm = accelerator.load(module)
at_opening = list(seen)
for entrypoint in (subject.RUN, subject.STATEFUL):  # the emulator, not the driver, compiles what it meets first
    with Rig(accelerator, module, entrypoint) as rig:
        wait_done(rig.submit(), 10**10)
guard.install()
guard.on_violation(lambda act, detail: acts.append([act.value, detail]))
guard.seal(readable=(), writable=())
results = []
for entrypoint in (subject.RUN, subject.STATEFUL):
    with Rig(accelerator, module, entrypoint) as rig:
        for seed in (1, 2, 1):
            rig.fill(seed)
            rig.reset()
            wait_done(rig.submit(), 10**10)
            results.append(rig.output())
same = results[0] == results[2] and results[3] == results[5] and results[0] != results[1]
print(json.dumps([at_opening, acts, same, gpu.failure]), flush=True)
os._exit(0)  # the emulator's own clean-up at exit is not for a sealed process
"""


def test_opening_and_loading_start_nothing_and_a_sealed_process_loads_and_runs_modules() -> None:
    hcq.require_emulator()
    at_opening, acts, same, failure = hcq.run(SEALED)
    assert at_opening == []
    assert (acts, failure) == ([], "")
    assert same
