"""The OpenCL driver on this machine's device (PoCL in CI). Faults are put below the driver, at OpenCL's own calls."""

from __future__ import annotations

import ctypes
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from abi.graph import Graph
from hal import opencl_device
from hal.accelerator import DeviceOptions, Module, open_accelerator
from hal.conformance_rig import Rig, wait_done
from hal.error import HalCode, HalError
from hal.fence import Fence, FenceStatus
from hal.memory import PAGE_BYTES, Mapping
from hal.opencl import OpenClAccelerator
from hal.opencl_api import OpenClApi, load_bindings
from hal.opencl_device import Sharing, find_device
from tests.conformance import subject
from tests.support import opencl

LIMIT_NS = 20_000_000_000
SECOND_NS = 1_000_000_000


@pytest.fixture(scope="module")
def module() -> Module:
    opencl.require_device()
    return opencl.module()


@pytest.fixture
def accelerator(module: Module) -> Iterator[OpenClAccelerator]:
    opened = OpenClAccelerator(DeviceOptions())
    yield opened
    opened.close()


@pytest.fixture(params=Sharing)
def shared(module: Module, request: pytest.FixtureRequest) -> Iterator[OpenClAccelerator]:
    opened = OpenClAccelerator(DeviceOptions(), request.param)
    yield opened
    opened.close()


def refused(act: Callable[[], object], code: HalCode) -> HalError:
    with pytest.raises(HalError) as caught:
        act()
    assert caught.value.code is code, caught.value
    return caught.value


def values(rig: Rig) -> Any:
    return np.frombuffer(rig.output(), np.float32)


def frame_of(rig: Rig) -> Any:
    return np.frombuffer(rig.inputs()[0], np.uint8).astype(np.float32)


def launches_changed(module: Module, **changes: Any) -> Module:
    """The module with the first launch changed."""
    graph = module.graph
    launches = (replace(graph.launches[0], **changes), *graph.launches[1:])
    return replace(module, graph=replace(graph, launches=launches))


def test_it_is_opened_by_name_and_says_what_it_is(module: Module) -> None:
    opened = open_accelerator("opencl")
    properties = opened.properties()
    assert properties.driver == "opencl"
    assert properties.device in opened.devices()
    assert properties.device_count == len(opened.devices())
    assert properties.threads >= 1
    opened.close()
    refused(lambda: opened.load(module), HalCode.CLOSED)


def test_options_without_meaning_are_refused() -> None:
    error = refused(lambda: OpenClAccelerator(DeviceOptions(pin_cores=(0,))), HalCode.NOT_PERMITTED)
    assert "pin_cores" in error.what
    refused(lambda: OpenClAccelerator(DeviceOptions(queue_slots=0)), HalCode.SIZE)
    refused(lambda: OpenClAccelerator(DeviceOptions(queue_slots=3)), HalCode.SIZE)


def test_a_device_is_chosen_by_its_name_or_not_at_all(module: Module) -> None:
    plain = OpenClAccelerator(DeviceOptions())
    name = plain.properties().device
    plain.close()
    named = OpenClAccelerator(DeviceOptions(device=name))
    assert named.properties().device == name
    named.close()
    error = refused(lambda: OpenClAccelerator(DeviceOptions(device="another; 1.0")), HalCode.DRIVER_UNAVAILABLE)
    assert (error.expected, error.found) == ("'another; 1.0'", name)
    refused(lambda: open_accelerator("cpu", DeviceOptions(device=name)), HalCode.NOT_PERMITTED)


def test_one_of_several_devices_must_be_named(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    api = OpenClApi()
    handles = opencl_device._devices
    monkeypatch.setattr(opencl_device, "_devices", lambda api, platform: handles(api, platform) * 2)
    error = refused(lambda: find_device(api), HalCode.DRIVER_UNAVAILABLE)
    assert error.found.count(";") == 3  # two identities of two parts
    monkeypatch.setattr(opencl_device, "_devices", lambda api, platform: [])
    refused(lambda: find_device(api), HalCode.DRIVER_UNAVAILABLE)


def test_runs_are_right_however_memory_is_shared(shared: OpenClAccelerator, module: Module) -> None:
    with Rig(shared, module, subject.RUN) as rig:
        for seed in (1, 2):
            rig.fill(seed)
            wait_done(rig.submit(), LIMIT_NS)
            assert np.array_equal(values(rig), frame_of(rig) + 1 + 2 - 10)


def test_aux_inputs_reach_the_device(shared: OpenClAccelerator, module: Module) -> None:
    with Rig(shared, module, subject.AUXILIARY) as rig:
        wait_done(rig.submit(), LIMIT_NS)
        gain = np.frombuffer(rig.inputs()[1], np.float32)[0]
        assert gain not in (0.0, 1.0)
        assert np.array_equal(values(rig), frame_of(rig) * gain)


def test_state_survives_runs_is_seen_by_the_host_and_taken_from_it(shared: OpenClAccelerator, module: Module) -> None:
    with Rig(shared, module, subject.STATEFUL) as rig:
        wait_done(rig.submit(), LIMIT_NS)
        wait_done(rig.submit(), LIMIT_NS)
        state = np.frombuffer(rig.executable.state("sum"), np.float32)
        assert np.array_equal(state, 2 * frame_of(rig))
        np.frombuffer(rig.executable.state("sum"), np.float32)[:] = 1000.0  # hand-over from another model
        wait_done(rig.submit(), LIMIT_NS)
        assert np.array_equal(values(rig), 1000 + frame_of(rig))
        rig.reset()
        wait_done(rig.submit(), LIMIT_NS)
        assert np.array_equal(values(rig), frame_of(rig))
        error = refused(lambda: rig.executable.state("other"), HalCode.BINDING)
        assert error.expected == "sum"


def test_state_starts_with_its_value_from_the_weights(shared: OpenClAccelerator, module: Module) -> None:
    buffers = list(module.graph.buffers)
    buffers[subject.STATE] = replace(buffers[subject.STATE], initial_from_weights=True)
    weights = memoryview(np.arange(subject.COUNT, dtype=np.float32).tobytes())
    started = Module(replace(module.graph, buffers=tuple(buffers)), module.code, weights)
    with Rig(shared, started, subject.STATEFUL) as rig:
        wait_done(rig.submit(), LIMIT_NS)
        assert np.array_equal(values(rig), np.arange(subject.COUNT) + frame_of(rig))


def test_two_models_share_one_frame(shared: OpenClAccelerator, module: Module) -> None:
    with Rig(shared, module, subject.RUN) as rig:
        other = shared.load(module)
        bindings = other.bindings(subject.RUN)
        bindings.bind_frame(0, rig._main.imported[0])
        output = shared.allocate("output", subject.OUT_BYTES)
        bindings.bind_output(0, output)
        for seed in (1, 2, 3):
            rig.fill(seed)
            fences = [rig.submit(), shared.submit(other, bindings)]
            for fence in fences:
                wait_done(fence, LIMIT_NS)
            assert bytes(output.view) == rig.output()
        shared.unload(other)


def test_host_memory_is_used_itself_where_the_device_can(accelerator: OpenClAccelerator) -> None:
    buffer = accelerator.allocate("output", PAGE_BYTES)
    if accelerator._context.sharing is not Sharing.DIRECT:
        pytest.skip("this device does not work in host memory")
    assert buffer.zero_copy
    assert buffer.part(PAGE_BYTES // 2, 256).zero_copy
    copied = OpenClAccelerator(DeviceOptions(), Sharing.COPIED)
    assert not copied.allocate("output", PAGE_BYTES).zero_copy
    copied.close()


def test_mapped_memory_is_given_up_for_each_run_and_taken_back(module: Module) -> None:
    opened, calls = OpenClAccelerator(DeviceOptions(), Sharing.MAPPED), []

    def counted(name: str) -> None:
        real = put_below(opened, name, lambda *arguments: (calls.append(name), real(*arguments))[1])

    with Rig(opened, module, subject.AUXILIARY) as rig:  # a frame, an aux input and an output
        counted("clEnqueueUnmapMemObject")
        counted("clEnqueueMapBuffer")
        for _ in range(2):
            calls.clear()
            wait_done(rig.submit(), LIMIT_NS)
            state = ["clEnqueueUnmapMemObject"] if rig.executable.timeline.value == 1 else []
            assert calls == ["clEnqueueUnmapMemObject"] * 3 + state + ["clEnqueueMapBuffer"] * 3
    opened.close()


def test_another_tinygrad_in_the_process_is_left_as_it_was(module: Module) -> None:
    tinygrad = importlib.import_module("tinygrad")
    before = {name: one for name, one in sys.modules.items() if name.partition(".")[0] == "tinygrad"}
    bindings = load_bindings.__wrapped__()
    after = {name: one for name, one in sys.modules.items() if name.partition(".")[0] == "tinygrad"}
    assert after == before
    assert sys.modules["tinygrad"] is tinygrad
    assert bindings not in after.values()


def test_memory_that_the_device_cannot_address_is_refused(accelerator: OpenClAccelerator) -> None:
    buffer = accelerator.allocate("output", PAGE_BYTES)
    refused(lambda: buffer.part(4, 256), HalCode.ALIGNMENT)  # drivers take it, and the run crashes
    refused(lambda: buffer.part(0, PAGE_BYTES + 1), HalCode.SIZE)
    read_only = Mapping.anonymous(PAGE_BYTES)
    read_only.writable = False
    refused(lambda: accelerator.import_output(read_only), HalCode.BINDING)


def test_outputs_of_a_shared_ring_are_written_in_place(accelerator: OpenClAccelerator, module: Module) -> None:
    ring = Mapping.anonymous(4 * PAGE_BYTES)
    whole = accelerator.import_output(ring)
    with Rig(accelerator, module, subject.RUN) as rig:
        for slot in range(2):
            rig._main.bindings.bind_output(0, whole.part(slot * 2 * PAGE_BYTES, subject.OUT_BYTES))
            rig.fill(slot)
            wait_done(rig.submit(), LIMIT_NS)
            at = slot * 2 * PAGE_BYTES
            found = np.frombuffer(ring.view[at : at + subject.OUT_BYTES], np.float32)
            assert np.array_equal(found, frame_of(rig) - 7)


def test_an_arena_argument_where_the_device_cannot_address_it_is_refused(
    accelerator: OpenClAccelerator, module: Module
) -> None:
    buffers = list(module.graph.buffers)
    buffers[subject.TWO] = replace(buffers[subject.TWO], offset=subject.OUT_BYTES + 4, align_bytes=4)
    graph = replace(module.graph, buffers=tuple(buffers), arena_bytes=module.graph.arena_bytes + 4)
    refused(lambda: accelerator.load(replace(module, graph=graph)), HalCode.ALIGNMENT)


def test_buffers_of_another_device_are_refused(accelerator: OpenClAccelerator, module: Module) -> None:
    other = open_accelerator("opencl")
    with Rig(accelerator, module, subject.RUN) as rig:
        rig._main.bindings.bind_output(0, other.allocate("output", subject.OUT_BYTES))
        refused(rig.submit, HalCode.BINDING)
    other.close()


def test_bindings_of_another_module_are_refused(accelerator: OpenClAccelerator, module: Module) -> None:
    with Rig(accelerator, module, subject.RUN) as rig:
        other = accelerator.load(replace(module, graph=replace(module.graph)))
        refused(lambda: accelerator.submit(other, rig._main.bindings), HalCode.BINDING)
        accelerator.unload(other)
        refused(lambda: accelerator.unload(other), HalCode.BINDING)


def test_code_that_is_no_binary_is_refused(accelerator: OpenClAccelerator, module: Module) -> None:
    broken = memoryview(bytes(len(module.code)))
    error = refused(lambda: accelerator.load(replace(module, code=broken)), HalCode.CODE)
    assert "compile the model for this device" in str(error)
    assert accelerator.memory().executables == 0


def changed_program(graph: Graph, **changes: Any) -> Graph:
    return replace(graph, programs=(replace(graph.programs[0], **changes), *graph.programs[1:]))


def test_a_kernel_that_is_not_in_the_binary_is_refused(accelerator: OpenClAccelerator, module: Module) -> None:
    graph = changed_program(module.graph, symbol="w77")
    refused(lambda: accelerator.load(replace(module, graph=graph)), HalCode.CODE)


def test_a_kernel_with_another_number_of_arguments_is_refused(accelerator: OpenClAccelerator, module: Module) -> None:
    error = refused(lambda: accelerator.load(launches_changed(module, values=(1,))), HalCode.CODE)
    assert "launch 0 (w0)" in error.what
    assert (error.expected, error.found) == ("2", "3")


def test_a_scalar_that_no_kernel_argument_holds_is_refused(accelerator: OpenClAccelerator, module: Module) -> None:
    graph = module.graph
    launches = (graph.launches[0], replace(graph.launches[1], values=(1 << 40,)), *graph.launches[2:])
    refused(lambda: accelerator.load(replace(module, graph=replace(graph, launches=launches))), HalCode.CODE)


def put_below(accelerator: OpenClAccelerator, name: str, function: Callable[..., int]) -> Callable[..., Any]:
    """Puts a function in place of one of OpenCL's calls; returns the real one."""
    calls = accelerator._api._calls
    real = calls[name]
    calls[name] = function
    return real


def status(accelerator: OpenClAccelerator, name: str) -> int:
    return accelerator._api.constant(name)


def test_a_wait_that_returns_early_does_not_signal_the_fence(accelerator: OpenClAccelerator, module: Module) -> None:
    running, asked = status(accelerator, "CL_RUNNING"), []
    held = {"back": True}

    def still_running(event: int, what: int, size: int, value: int, answered: int | None) -> int:
        error = real(event, what, size, value, answered)
        if held["back"]:
            asked.append(event)
            ctypes.c_int32.from_address(value).value = running
        return int(error)

    with Rig(accelerator, module, subject.RUN) as rig:
        real = put_below(accelerator, "clGetEventInfo", still_running)
        fence = rig.submit()
        while len(asked) < 3:
            assert fence.poll() is FenceStatus.ACTIVE
            time.sleep(0)
        held["back"] = False
        wait_done(fence, LIMIT_NS)


def test_a_run_that_fails_on_the_device_latches_it_until_it_is_reset(shared: OpenClAccelerator, module: Module) -> None:
    lost = status(shared, "CL_OUT_OF_RESOURCES")

    def failed(event: int, what: int, size: int, value: int, answered: int | None) -> int:
        ctypes.c_int32.from_address(value).value = lost
        return 0

    with Rig(shared, module, subject.RUN) as rig:
        wait_done(rig.submit(), LIMIT_NS)
        real = put_below(shared, "clGetEventInfo", failed)
        fence = rig.submit()
        assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.ERROR
        put_below(shared, "clGetEventInfo", real)
        cause = shared.check(time.monotonic_ns())
        assert cause is not None
        assert cause.code is HalCode.DEVICE_LOST
        assert cause.found == "CL_OUT_OF_RESOURCES"
        refused(rig.submit, HalCode.DEVICE_LATCHED)
        shared.reset(time.monotonic_ns() + LIMIT_NS)
        assert shared.check(time.monotonic_ns()) is None
        wait_done(rig.submit(), LIMIT_NS)
        assert np.array_equal(values(rig), frame_of(rig) - 7)


def test_a_launch_that_cannot_be_enqueued_never_starts_the_run(accelerator: OpenClAccelerator, module: Module) -> None:
    full = status(accelerator, "CL_OUT_OF_HOST_MEMORY")
    with Rig(accelerator, module, subject.RUN) as rig:
        real = rig.executable._enqueue
        rig.executable._enqueue = lambda *arguments: full
        refused(rig.submit, HalCode.OUT_OF_MEMORY)
        rig.executable._enqueue = real
        fence = rig.submit()
        assert fence.value == 1
        wait_done(fence, LIMIT_NS)


def test_a_run_that_is_enqueued_in_part_ends_in_an_error(accelerator: OpenClAccelerator, module: Module) -> None:
    full, count = status(accelerator, "CL_OUT_OF_RESOURCES"), []
    with Rig(accelerator, module, subject.RUN) as rig:
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
        accelerator.reset(time.monotonic_ns() + LIMIT_NS)
        wait_done(rig.submit(), LIMIT_NS)


def test_runs_that_were_not_enqueued_are_withdrawn_by_a_cancel(accelerator: OpenClAccelerator, module: Module) -> None:
    with Rig(accelerator, module, subject.LONG) as rig:
        rig.calibrate(SECOND_NS // 5, LIMIT_NS)
        lanes = [rig.lane() for _ in range(5)]
        for lane in lanes:
            lane.fill_rounds(1)
            lane.outputs[0].view[:] = bytes([0xA5]) * subject.OUT_BYTES
        fences: list[Fence] = [rig.submit(), *(lane.submit() for lane in lanes)]
        rig.executable.cancel()
        assert fences[-1].wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.ERROR
        for fence in fences:
            assert fence.poll() is FenceStatus.ERROR
            assert fence.error is not None
            assert fence.error.code is HalCode.RUN_CANCELLED
        for lane in lanes[1:]:  # one was enqueued behind the long run
            assert lane.output() == bytes([0xA5]) * subject.OUT_BYTES
        assert rig.executable.launches_done() >= 2
        rig.fill_rounds(1)
        wait_done(rig.submit(), LIMIT_NS)


def test_after_a_reset_bound_memory_is_usable_and_state_has_its_first_value(
    shared: OpenClAccelerator, module: Module
) -> None:
    with Rig(shared, module, subject.STATEFUL) as rig:
        wait_done(rig.submit(), LIMIT_NS)
        before = shared._context.generation
        shared.latch(HalError(HalCode.DEVICE_HANG, "told so by the test"))
        shared.reset(time.monotonic_ns() + LIMIT_NS)
        assert shared._context.generation == before + 1
        wait_done(rig.submit(), LIMIT_NS)
        assert np.array_equal(values(rig), frame_of(rig))


def test_device_times_are_in_the_hosts_clock_within_the_stated_error(
    accelerator: OpenClAccelerator, module: Module
) -> None:
    with Rig(accelerator, module, subject.RUN) as rig:
        for _ in range(50):
            before_ns = time.monotonic_ns()
            fence = rig.submit()
            wait_done(fence, LIMIT_NS)
            after_ns, timeline = time.monotonic_ns(), fence.timeline
            assert before_ns - timeline.clock_error_ns <= timeline.to_monotonic(fence.started_ns)
            assert timeline.to_monotonic(fence.completed_ns) <= after_ns + timeline.clock_error_ns
            assert fence.started_ns < fence.completed_ns
        raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        offset_ns = time.monotonic_ns() - raw
        if accelerator.properties().clock == "CLOCK_MONOTONIC_RAW":  # PoCL: the offset can be read independently
            assert abs(timeline.clock_offset_ns - offset_ns) <= timeline.clock_error_ns + 1_000_000


def test_memory_in_use_is_counted(accelerator: OpenClAccelerator, module: Module) -> None:
    with Rig(accelerator, module, subject.RUN):
        used = accelerator.memory()
        assert (used.executables, used.arena_bytes) == (1, 2 * subject.OUT_BYTES)
        assert used.code_bytes == len(module.code)
        assert used.allocated_bytes >= subject.OUT_BYTES
    assert accelerator.memory().executables == 0
