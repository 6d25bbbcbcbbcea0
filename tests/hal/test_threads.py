"""A device while another thread brings in a module: its memory can be asked, and a reset meets no half-made run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hal.accelerator import DeviceOptions
from hal.cpu import CpuAccelerator
from hal.error import HalCode, HalError
from hal.fence import Fence, FenceStatus
from hal.memory import PAGE_BYTES, HeldBytes, Mapping
from tests.conformance import subject

LIMIT_NS = 60_000_000_000


@pytest.fixture
def cpu() -> Iterator[CpuAccelerator]:
    accelerator = CpuAccelerator(DeviceOptions())
    yield accelerator
    accelerator.close()


def test_held_bytes_follow_what_is_held() -> None:
    held = HeldBytes()
    one, two = Mapping.anonymous(PAGE_BYTES), Mapping.anonymous(3 * PAGE_BYTES)
    held.add(one)
    held.add(two)
    assert held.total_bytes == 4 * PAGE_BYTES
    del one
    assert held.total_bytes == 3 * PAGE_BYTES
    del two
    assert held.total_bytes == 0


def test_memory_can_be_asked_while_another_thread_allocates(cpu: CpuAccelerator) -> None:
    stop, made = threading.Event(), []

    def allocate() -> None:
        while not stop.is_set():
            made.append([cpu.allocate("self-test", 64) for _ in range(64)])
            made[:] = made[-1:]

    allocating = threading.Thread(target=allocate, daemon=True)
    allocating.start()
    try:
        for _ in range(2000):
            assert cpu.memory().allocated_bytes >= 0
    finally:
        stop.set()
        allocating.join()


def test_a_reset_waits_for_a_run_that_another_thread_is_handing_over(
    cpu: CpuAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread is stopped in the middle of `submit`, and goes on at the worst moment of the reset."""
    executable = cpu.load(subject.module())
    bindings, frame = executable.bindings(subject.LONG), cpu.allocate("frame", subject.COUNT)
    frame.view[:4] = (200_000).to_bytes(4, "little")  # rounds: long enough to be on the device still
    bindings.bind_frame(0, frame)
    bindings.bind_output(0, cpu.allocate("output", subject.OUT_BYTES))
    entered, go_on, fences = threading.Event(), threading.Event(), list[Fence]()
    submit, idle_before = executable.submit, executable.idle_before

    def slow_submit(bound: object) -> Fence:
        entered.set()
        go_on.wait(0.2)
        return submit(bindings)

    monkeypatch.setattr(executable, "submit", slow_submit)
    other = threading.Thread(target=lambda: fences.append(cpu.submit(executable, bindings)), daemon=True)

    def idle_then_go_on(deadline_ns: int) -> bool:
        idle = idle_before(deadline_ns)
        go_on.set()
        other.join()
        return idle

    monkeypatch.setattr(executable, "idle_before", idle_then_go_on)
    other.start()
    assert entered.wait(LIMIT_NS / 1e9)
    cpu.latch(HalError(HalCode.DEVICE_LOST, "planted"))
    cpu.reset(time.monotonic_ns() + LIMIT_NS)
    assert fences[0].poll() is FenceStatus.ERROR
    monkeypatch.setattr(executable, "submit", submit)
    fence = cpu.submit(executable, bindings)
    assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.SIGNALED


def test_a_module_that_cannot_be_unloaded_stays_the_devices(
    cpu: CpuAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = cpu.load(subject.module())

    def hang(deadline_ns: int) -> None:
        raise HalError(HalCode.DEVICE_HANG, "planted")

    with monkeypatch.context() as patch:
        patch.setattr(executable, "unload_until", hang)
        with pytest.raises(HalError, match="planted"):
            cpu.unload(executable)
    assert cpu.memory().executables == 1
    cpu.unload(executable)
    assert cpu.memory().executables == 0
