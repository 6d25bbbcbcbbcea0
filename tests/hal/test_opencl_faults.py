"""The OpenCL driver when the device fails. Faults are put below it, at OpenCL's own calls."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from hal.accelerator import DeviceOptions, Module
from hal.conformance_rig import Rig, wait_done
from hal.error import HalCode
from hal.fence import FenceStatus
from hal.opencl import OpenClAccelerator
from hal.opencl_device import Sharing
from tests.conformance import subject
from tests.support.opencl import LIMIT_NS, frame_of, refused, values


def put_below(cl: OpenClAccelerator, name: str, function: Callable[..., int]) -> Callable[..., Any]:
    """Puts a function in place of one of OpenCL's calls; returns the real one."""
    calls = cl._api._calls
    real = calls[name]
    calls[name] = function
    return real


def status(cl: OpenClAccelerator, name: str) -> int:
    return cl._api.constant(name)


def test_a_wait_that_returns_early_does_not_signal_the_fence(cl: OpenClAccelerator, cl_module: Module) -> None:
    running, asked = status(cl, "CL_RUNNING"), []
    held = {"back": True}

    def still_running(event: int, what: int, size: int, value: int, answered: int | None) -> int:
        error = real(event, what, size, value, answered)
        if held["back"]:
            asked.append(event)
            ctypes.c_int32.from_address(value).value = running
        return int(error)

    with Rig(cl, cl_module, subject.RUN) as rig:
        real = put_below(cl, "clGetEventInfo", still_running)
        fence = rig.submit()
        while len(asked) < 3:
            assert fence.poll() is FenceStatus.ACTIVE
            time.sleep(0)
        held["back"] = False
        wait_done(fence, LIMIT_NS)


def test_a_run_that_fails_on_the_device_latches_it_until_it_is_reset(
    cl_shared: OpenClAccelerator, cl_module: Module
) -> None:
    lost = status(cl_shared, "CL_OUT_OF_RESOURCES")

    def failed(event: int, what: int, size: int, value: int, answered: int | None) -> int:
        ctypes.c_int32.from_address(value).value = lost
        return 0

    with Rig(cl_shared, cl_module, subject.RUN) as rig:
        wait_done(rig.submit(), LIMIT_NS)
        real = put_below(cl_shared, "clGetEventInfo", failed)
        fence = rig.submit()
        assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.ERROR
        put_below(cl_shared, "clGetEventInfo", real)
        cause = cl_shared.check(time.monotonic_ns())
        assert cause is not None
        assert cause.code is HalCode.DEVICE_LOST
        assert cause.found == "CL_OUT_OF_RESOURCES"
        refused(rig.submit, HalCode.DEVICE_LATCHED)
        cl_shared.reset(time.monotonic_ns() + LIMIT_NS)
        assert cl_shared.check(time.monotonic_ns()) is None
        wait_done(rig.submit(), LIMIT_NS)
        assert np.array_equal(values(rig), frame_of(rig) - 7)


def test_a_launch_that_cannot_be_enqueued_never_starts_the_run(cl: OpenClAccelerator, cl_module: Module) -> None:
    full = status(cl, "CL_OUT_OF_HOST_MEMORY")
    with Rig(cl, cl_module, subject.RUN) as rig:
        real = rig.executable._enqueue
        rig.executable._enqueue = lambda *arguments: full
        refused(rig.submit, HalCode.OUT_OF_MEMORY)
        rig.executable._enqueue = real
        fence = rig.submit()
        assert fence.value == 1
        wait_done(fence, LIMIT_NS)


def test_a_run_that_is_enqueued_in_part_ends_in_an_error(cl: OpenClAccelerator, cl_module: Module) -> None:
    full, count = status(cl, "CL_OUT_OF_RESOURCES"), []
    with Rig(cl, cl_module, subject.RUN) as rig:
        real = rig.executable._enqueue

        def third_fails(*arguments: Any) -> int:
            count.append(1)
            return full if len(count) == 3 else int(real(*arguments))

        rig.executable._enqueue = third_fails
        fence = rig.submit()
        assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.ERROR
        assert fence.quiet
        rig.executable._enqueue = real
        refused(rig.submit, HalCode.DEVICE_LATCHED)
        cl.reset(time.monotonic_ns() + LIMIT_NS)
        wait_done(rig.submit(), LIMIT_NS)


def test_mapped_memory_is_given_up_for_each_run_and_taken_back(cl_module: Module) -> None:
    opened, calls = OpenClAccelerator(DeviceOptions(), Sharing.MAPPED), []

    def counted(name: str) -> None:
        real = put_below(opened, name, lambda *arguments: (calls.append(name), real(*arguments))[1])

    with Rig(opened, cl_module, subject.AUXILIARY) as rig:  # a frame, an aux input and an output
        counted("clEnqueueUnmapMemObject")
        counted("clEnqueueMapBuffer")
        for _ in range(2):
            calls.clear()
            wait_done(rig.submit(), LIMIT_NS)
            state = ["clEnqueueUnmapMemObject"] if rig.executable.timeline.value == 1 else []
            assert calls == ["clEnqueueUnmapMemObject"] * 3 + state + ["clEnqueueMapBuffer"] * 3
    opened.close()
