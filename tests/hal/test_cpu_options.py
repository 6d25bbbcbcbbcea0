"""What the CPU driver is asked for by its options, and the processes that it must run in."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hal.accelerator import DeviceOptions, open_accelerator
from hal.cpu import CpuAccelerator
from hal.error import HalCode, HalError
from tests.conformance import subject
from tests.support.cpu_module import Loaded, refusal

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cpu() -> Iterator[CpuAccelerator]:
    accelerator = CpuAccelerator(DeviceOptions())
    yield accelerator
    accelerator.close()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (DeviceOptions(queue_slots=0), HalCode.SIZE),
        (DeviceOptions(queue_slots=6), HalCode.SIZE),
        (DeviceOptions(fifo_priority=100), HalCode.SIZE),
        (DeviceOptions(fifo_priority=-1), HalCode.SIZE),
        (DeviceOptions(spin_us=-1), HalCode.SIZE),
        (DeviceOptions(spin_us=1_000_001), HalCode.SIZE),
        (DeviceOptions(pin_cores=(100_000,)), HalCode.NOT_PERMITTED),
    ],
)
def test_impossible_options_are_refused(options: DeviceOptions, code: HalCode) -> None:
    assert refusal(lambda: open_accelerator("cpu", options)).code is code


def workers_beside(others: set[threading.Thread]) -> list[threading.Thread]:
    """The workers that were started since; other tests may have left some of theirs."""
    return [one for one in threading.enumerate() if one.name.startswith("fenced-cpu-") and one not in others]


def test_workers_are_pinned_and_memory_advised() -> None:
    core, others = min(os.sched_getaffinity(0)), set(threading.enumerate())
    cpu = CpuAccelerator(DeviceOptions(pin_cores=(core,), huge_pages=True, queue_slots=1))
    loaded = Loaded(cpu, subject.RUN, threads=2)
    loaded.frame.mapping.array[:] = 7
    assert (loaded.run() == 0).all()
    workers = workers_beside(others)
    assert len(workers) == 2
    for worker in workers:
        assert worker.native_id is not None
        assert os.sched_getaffinity(worker.native_id) == {core}
    cpu.close()


def test_real_time_priority_is_given_or_refused_by_name() -> None:
    cpu = CpuAccelerator(DeviceOptions(fifo_priority=1))
    before, others = threading.active_count(), set(threading.enumerate())
    try:
        cpu.load(subject.module())
    except HalError as error:
        assert error.code is HalCode.NOT_PERMITTED  # noqa: PT017 (depends on the rights of who runs the tests)
        assert threading.active_count() <= before
    else:
        workers = workers_beside(others)
        assert {os.sched_getscheduler(worker.native_id or 0) for worker in workers} == {os.SCHED_FIFO}
    cpu.close()


def test_a_refused_priority_leaves_no_worker_behind(cpu: CpuAccelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, policy: int, parameters: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    before = threading.active_count()
    other = CpuAccelerator(DeviceOptions(fifo_priority=5))
    assert refusal(lambda: other.load(subject.module())).code is HalCode.NOT_PERMITTED
    assert threading.active_count() <= before  # earlier tests may have left some that end meanwhile
    assert other.memory().executables == 0


@pytest.mark.parametrize("spin_us", [0, 20_000])
def test_idle_workers_that_look_for_runs_compute_the_same_and_leave(spin_us: int) -> None:
    before = threading.active_count()
    cpu = CpuAccelerator(DeviceOptions(spin_us=spin_us))
    loaded = Loaded(cpu, subject.RUN, threads=2)
    for value in (3, 5):
        loaded.frame.mapping.array[:] = value
        assert (loaded.run() == value - 7).all()
    cpu.close()  # while the worker looks
    assert threading.active_count() <= before  # earlier tests may have left some that end meanwhile


@pytest.mark.parametrize(("fifo_priority", "idle_spin_ns"), [(0, 70_000), (5, 0)])
def test_a_worker_with_a_priority_never_looks_and_keeps_the_core(
    fifo_priority: int, idle_spin_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_setscheduler", lambda pid, policy, parameters: None)
    cpu = CpuAccelerator(DeviceOptions(fifo_priority=fifo_priority, spin_us=70))
    control = cpu.load(subject.module()).control
    assert struct.unpack_from("<I", control.mapping.view, 92) == (idle_spin_ns,)  # lab/compile/queue.h
    cpu.close()


def test_locked_memory_is_locked_or_refused_by_name() -> None:
    cpu = CpuAccelerator(DeviceOptions(lock_memory=True))
    try:
        loaded = Loaded(cpu, subject.RUN)
    except HalError as error:
        assert error.code in (HalCode.NOT_PERMITTED, HalCode.OUT_OF_MEMORY)  # noqa: PT017 (depends on the limit)
    else:
        loaded.run()
    cpu.close()


def test_an_unknown_driver_is_refused() -> None:
    assert refusal(lambda: open_accelerator("torch")).code is HalCode.UNKNOWN_DRIVER


HARDENED = """
import ctypes, mmap, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
    print("no MDWE"); sys.exit(0)
try:
    mmap.mmap(-1, 4096, prot=7); sys.exit("writable code was not refused")
except PermissionError:
    pass
from tests.conformance import subject
subject.code = lambda: open(sys.argv[1], "rb").read()
from hal.accelerator import open_accelerator
cpu = open_accelerator("cpu")
executable = cpu.load(subject.module())
bindings = executable.bindings(subject.RUN)
frame, output = cpu.allocate("f", subject.COUNT), cpu.allocate("o", subject.OUT_BYTES)
frame.view[:] = bytes([12]) * subject.COUNT
bindings.bind_frame(0, frame); bindings.bind_output(0, output)
fence = cpu.submit(executable, bindings)
fence.wait(time.monotonic_ns() + 60 * 10**9)
cpu.close()
print(fence.status.name, output.view.cast("f")[0])
"""


def test_it_runs_where_no_page_may_ever_become_executable(tmp_path: Path) -> None:
    (tmp_path / "code.so").write_bytes(subject.code())
    done = subprocess.run(
        [sys.executable, "-c", HARDENED, str(tmp_path / "code.so")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    if done.stdout == "no MDWE\n":
        pytest.skip("this kernel has no PR_SET_MDWE (Linux 6.3)")
    assert done.stdout == "SIGNALED 5.0\n"


def test_the_cpu_path_loads_neither_tinygrad_nor_the_lab() -> None:
    text = "import sys, hal.cpu, hal.conformance; print([m for m in ('tinygrad', 'lab', 'onnx') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
