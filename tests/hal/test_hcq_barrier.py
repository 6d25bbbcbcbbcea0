"""The barrier that stands in for libatomic's."""

from __future__ import annotations

import platform

import pytest

from hal.error import HalCode, HalError
from hal.hcq_barrier import Barrier

SEQUENTIALLY_CONSISTENT = 5


@pytest.mark.parametrize("arch", ["", "another"], ids=["this machine's", "membarrier"])
def test_a_barrier_is_passed(arch: str) -> None:
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("its system call's number is not known here")
    barrier = Barrier(arch)
    for _ in range(3):
        barrier.atomic_thread_fence(SEQUENTIALLY_CONSISTENT)


def test_a_kernel_that_refuses_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = Barrier("another")
    monkeypatch.setattr(barrier, "_syscall", lambda *arguments: -1)
    with pytest.raises(HalError) as caught:
        barrier.atomic_thread_fence(SEQUENTIALLY_CONSISTENT)
    assert caught.value.code is HalCode.DRIVER_UNAVAILABLE


def test_a_machine_without_a_known_barrier_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(HalError) as caught:
        Barrier()
    assert caught.value.found == "riscv64"
