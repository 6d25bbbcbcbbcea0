"""The OpenCL driver on this machine's device (PoCL in CI)."""

from __future__ import annotations

import importlib
import sys
import time
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
from tests.support.opencl import LIMIT_NS, frame_of, refused, values

SECOND_NS = 1_000_000_000


def launches_changed(cl_module: Module, **changes: Any) -> Module:
    """The cl_module with the first launch changed."""
    graph = cl_module.graph
    launches = (replace(graph.launches[0], **changes), *graph.launches[1:])
    return replace(cl_module, graph=replace(graph, launches=launches))


def test_it_is_opened_by_name_and_says_what_it_is(cl_module: Module) -> None:
    opened = open_accelerator("opencl")
    properties = opened.properties()
    assert properties.driver == "opencl"
    assert properties.device in opened.devices()
    assert properties.device_count == len(opened.devices())
    assert properties.threads >= 1
    opened.close()
    refused(lambda: opened.load(cl_module), HalCode.CLOSED)


def test_options_without_meaning_are_refused() -> None:
    error = refused(lambda: OpenClAccelerator(DeviceOptions(pin_cores=(0,))), HalCode.NOT_PERMITTED)
    assert "pin_cores" in error.what
    refused(lambda: OpenClAccelerator(DeviceOptions(queue_slots=0)), HalCode.SIZE)
    refused(lambda: OpenClAccelerator(DeviceOptions(queue_slots=3)), HalCode.SIZE)


def test_a_device_is_chosen_by_its_name_or_not_at_all(cl_module: Module) -> None:
    plain = OpenClAccelerator(DeviceOptions())
    name = plain.properties().device
    plain.close()
    named = OpenClAccelerator(DeviceOptions(device=name))
    assert named.properties().device == name
    named.close()
    error = refused(lambda: OpenClAccelerator(DeviceOptions(device="another; 1.0")), HalCode.DRIVER_UNAVAILABLE)
    assert (error.expected, error.found) == ("'another; 1.0'", name)
    refused(lambda: open_accelerator("cpu", DeviceOptions(device=name)), HalCode.NOT_PERMITTED)


def test_one_of_several_devices_must_be_named(cl_module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    api = OpenClApi()
    handles = opencl_device._devices
    monkeypatch.setattr(opencl_device, "_devices", lambda api, platform: handles(api, platform) * 2)
    error = refused(lambda: find_device(api), HalCode.DRIVER_UNAVAILABLE)
    assert error.found.count(";") == 3  # two identities of two parts
    monkeypatch.setattr(opencl_device, "_devices", lambda api, platform: [])
    refused(lambda: find_device(api), HalCode.DRIVER_UNAVAILABLE)


def test_runs_are_right_however_memory_is_shared(cl_shared: OpenClAccelerator, cl_module: Module) -> None:
    with Rig(cl_shared, cl_module, subject.RUN) as rig:
        for seed in (1, 2):
            rig.fill(seed)
            wait_done(rig.submit(), LIMIT_NS)
            assert np.array_equal(values(rig), frame_of(rig) + 1 + 2 - 10)


def test_aux_inputs_reach_the_device(cl_shared: OpenClAccelerator, cl_module: Module) -> None:
    with Rig(cl_shared, cl_module, subject.AUXILIARY) as rig:
        wait_done(rig.submit(), LIMIT_NS)
        gain = np.frombuffer(rig.inputs()[1], np.float32)[0]
        assert gain not in (0.0, 1.0)
        assert np.array_equal(values(rig), frame_of(rig) * gain)


def test_state_survives_runs_is_seen_by_the_host_and_taken_from_it(
    cl_shared: OpenClAccelerator, cl_module: Module
) -> None:
    with Rig(cl_shared, cl_module, subject.STATEFUL) as rig:
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


def test_state_starts_with_its_value_from_the_weights(cl_shared: OpenClAccelerator, cl_module: Module) -> None:
    buffers = list(cl_module.graph.buffers)
    buffers[subject.STATE] = replace(buffers[subject.STATE], initial_from_weights=True)
    weights = memoryview(np.arange(subject.COUNT, dtype=np.float32).tobytes())
    started = Module(replace(cl_module.graph, buffers=tuple(buffers)), cl_module.code, weights)
    with Rig(cl_shared, started, subject.STATEFUL) as rig:
        wait_done(rig.submit(), LIMIT_NS)
        assert np.array_equal(values(rig), np.arange(subject.COUNT) + frame_of(rig))


def test_two_models_share_one_frame(cl_shared: OpenClAccelerator, cl_module: Module) -> None:
    with Rig(cl_shared, cl_module, subject.RUN) as rig:
        other = cl_shared.load(cl_module)
        bindings = other.bindings(subject.RUN)
        bindings.bind_frame(0, rig._main.imported[0])
        output = cl_shared.allocate("output", subject.OUT_BYTES)
        bindings.bind_output(0, output)
        for seed in (1, 2, 3):
            rig.fill(seed)
            fences = [rig.submit(), cl_shared.submit(other, bindings)]
            for fence in fences:
                wait_done(fence, LIMIT_NS)
            assert bytes(output.view) == rig.output()
        cl_shared.unload(other)


def test_host_memory_is_used_itself_where_the_device_can(cl: OpenClAccelerator) -> None:
    buffer = cl.allocate("output", PAGE_BYTES)
    if cl._context.sharing is not Sharing.DIRECT:
        pytest.skip("this device does not work in host memory")
    assert buffer.zero_copy
    assert buffer.part(PAGE_BYTES // 2, 256).zero_copy
    copied = OpenClAccelerator(DeviceOptions(), Sharing.COPIED)
    assert not copied.allocate("output", PAGE_BYTES).zero_copy
    copied.close()


def test_another_tinygrad_in_the_process_is_left_as_it_was(cl_module: Module) -> None:
    tinygrad = importlib.import_module("tinygrad")
    before = {name: one for name, one in sys.modules.items() if name.partition(".")[0] == "tinygrad"}
    bindings = load_bindings.__wrapped__()
    after = {name: one for name, one in sys.modules.items() if name.partition(".")[0] == "tinygrad"}
    assert after == before
    assert sys.modules["tinygrad"] is tinygrad
    assert bindings not in after.values()


def test_memory_that_the_device_cannot_address_is_refused(cl: OpenClAccelerator) -> None:
    buffer = cl.allocate("output", PAGE_BYTES)
    refused(lambda: buffer.part(4, 256), HalCode.ALIGNMENT)  # drivers take it, and the run crashes
    refused(lambda: buffer.part(0, PAGE_BYTES + 1), HalCode.SIZE)
    read_only = Mapping.anonymous(PAGE_BYTES)
    read_only.writable = False
    refused(lambda: cl.import_output(read_only), HalCode.BINDING)


def test_outputs_of_a_shared_ring_are_written_in_place(cl: OpenClAccelerator, cl_module: Module) -> None:
    ring = Mapping.anonymous(4 * PAGE_BYTES)
    whole = cl.import_output(ring)
    with Rig(cl, cl_module, subject.RUN) as rig:
        for slot in range(2):
            rig._main.bindings.bind_output(0, whole.part(slot * 2 * PAGE_BYTES, subject.OUT_BYTES))
            rig.fill(slot)
            wait_done(rig.submit(), LIMIT_NS)
            at = slot * 2 * PAGE_BYTES
            found = np.frombuffer(ring.view[at : at + subject.OUT_BYTES], np.float32)
            assert np.array_equal(found, frame_of(rig) - 7)


def test_an_arena_argument_where_the_device_cannot_address_it_is_refused(
    cl: OpenClAccelerator, cl_module: Module
) -> None:
    buffers = list(cl_module.graph.buffers)
    buffers[subject.TWO] = replace(buffers[subject.TWO], offset=subject.OUT_BYTES + 4, align_bytes=4)
    graph = replace(cl_module.graph, buffers=tuple(buffers), arena_bytes=cl_module.graph.arena_bytes + 4)
    refused(lambda: cl.load(replace(cl_module, graph=graph)), HalCode.ALIGNMENT)


def test_buffers_of_another_device_are_refused(cl: OpenClAccelerator, cl_module: Module) -> None:
    other = open_accelerator("opencl")
    with Rig(cl, cl_module, subject.RUN) as rig:
        rig._main.bindings.bind_output(0, other.allocate("output", subject.OUT_BYTES))
        refused(rig.submit, HalCode.BINDING)
    other.close()


def test_bindings_of_another_module_are_refused(cl: OpenClAccelerator, cl_module: Module) -> None:
    with Rig(cl, cl_module, subject.RUN) as rig:
        other = cl.load(replace(cl_module, graph=replace(cl_module.graph)))
        refused(lambda: cl.submit(other, rig._main.bindings), HalCode.BINDING)
        cl.unload(other)
        refused(lambda: cl.unload(other), HalCode.BINDING)


def test_code_that_is_no_binary_is_refused(cl: OpenClAccelerator, cl_module: Module) -> None:
    broken = memoryview(bytes(len(cl_module.code)))
    error = refused(lambda: cl.load(replace(cl_module, code=broken)), HalCode.CODE)
    assert "compile the model for this device" in str(error)
    assert cl.memory().executables == 0


def changed_program(graph: Graph, **changes: Any) -> Graph:
    return replace(graph, programs=(replace(graph.programs[0], **changes), *graph.programs[1:]))


def test_a_kernel_that_is_not_in_the_binary_is_refused(cl: OpenClAccelerator, cl_module: Module) -> None:
    graph = changed_program(cl_module.graph, symbol="w77")
    refused(lambda: cl.load(replace(cl_module, graph=graph)), HalCode.CODE)


def test_a_kernel_with_another_number_of_arguments_is_refused(cl: OpenClAccelerator, cl_module: Module) -> None:
    error = refused(lambda: cl.load(launches_changed(cl_module, values=(1,))), HalCode.CODE)
    assert "launch 0 (w0)" in error.what
    assert (error.expected, error.found) == ("2", "3")


def test_a_scalar_that_no_kernel_argument_holds_is_refused(cl: OpenClAccelerator, cl_module: Module) -> None:
    graph = cl_module.graph
    launches = (graph.launches[0], replace(graph.launches[1], values=(1 << 40,)), *graph.launches[2:])
    refused(lambda: cl.load(replace(cl_module, graph=replace(graph, launches=launches))), HalCode.CODE)


def test_runs_that_were_not_enqueued_are_withdrawn_by_a_cancel(cl: OpenClAccelerator, cl_module: Module) -> None:
    with Rig(cl, cl_module, subject.LONG) as rig:
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
    cl_shared: OpenClAccelerator, cl_module: Module
) -> None:
    with Rig(cl_shared, cl_module, subject.STATEFUL) as rig:
        wait_done(rig.submit(), LIMIT_NS)
        before = cl_shared._context.generation
        cl_shared.latch(HalError(HalCode.DEVICE_HANG, "told so by the test"))
        cl_shared.reset(time.monotonic_ns() + LIMIT_NS)
        assert cl_shared._context.generation == before + 1
        wait_done(rig.submit(), LIMIT_NS)
        assert np.array_equal(values(rig), frame_of(rig))


def test_device_times_are_in_the_hosts_clock_within_the_stated_error(cl: OpenClAccelerator, cl_module: Module) -> None:
    with Rig(cl, cl_module, subject.RUN) as rig:
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
        if cl.properties().clock == "CLOCK_MONOTONIC_RAW":  # PoCL: the offset can be read independently
            assert abs(timeline.clock_offset_ns - offset_ns) <= timeline.clock_error_ns + 1_000_000


def test_memory_in_use_is_counted(cl: OpenClAccelerator, cl_module: Module) -> None:
    with Rig(cl, cl_module, subject.RUN):
        used = cl.memory()
        assert (used.executables, used.arena_bytes) == (1, 2 * subject.OUT_BYTES)
        assert used.code_bytes == len(cl_module.code)
        assert used.allocated_bytes >= subject.OUT_BYTES
    assert cl.memory().executables == 0
