"""The CPU driver with kernels linked as a bundle's are: memory, state, cancellation, refusals, and what it leaves."""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from abi.graph import BufferKind, EntryRole
from hal import cpu_executable
from hal.accelerator import DeviceOptions, SealedSpan
from hal.cpu import CpuAccelerator
from hal.error import HalCode, HalError
from hal.fence import FenceStatus
from hal.memory import PAGE_BYTES, Mapping, create_sealed, seal_copy
from hal.refusal import AdmissionCode, AdmissionRefused
from tests.conformance import subject
from tests.support.cpu_module import LIMIT_NS, Loaded, refusal
from tests.support.descriptors import open_descriptors

ENDLESS = (1 << 32) - 1  # rounds


@pytest.fixture
def cpu() -> Iterator[CpuAccelerator]:
    accelerator = CpuAccelerator(DeviceOptions())
    yield accelerator
    accelerator.close()


def test_launches_compute_what_their_kernels_say(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.RUN)
    for shift in range(200):
        pixels = ((np.arange(subject.COUNT) + shift) % 256).astype(np.uint8)
        loaded.frame.mapping.array[:] = pixels
        assert np.array_equal(loaded.run(), pixels.astype(np.float32) - 7)
    assert loaded.executable.launches_done() == 200 * 4


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_core_of_a_launch_runs_once_whatever_the_workers(cpu: CpuAccelerator, threads: int) -> None:
    loaded = Loaded(cpu, subject.RUN, threads)
    loaded.frame.mapping.array[:] = 9
    for _ in range(300):
        loaded.output.mapping.array[:] = 0
        assert (loaded.run() == 2).all()


def test_state_starts_as_zero_survives_runs_and_can_be_reset(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.STATEFUL)
    loaded.frame.mapping.array[:] = 3
    assert [loaded.run()[0] for _ in range(3)] == [3, 6, 9]
    state = np.frombuffer(loaded.executable.state("sum"), np.float32)
    assert (state == 9).all()
    loaded.executable.reset_state()
    assert loaded.run()[5] == 3


def test_state_can_start_from_the_weights(cpu: CpuAccelerator) -> None:
    module = subject.module()
    first = np.arange(subject.COUNT, dtype=np.float32)
    buffers = list(module.graph.buffers)
    buffers[subject.STATE] = replace(buffers[subject.STATE], initial_from_weights=True)
    graph = replace(module.graph, buffers=tuple(buffers))
    executable = cpu.load(replace(module, graph=graph, weights=memoryview(first.tobytes())))
    assert np.array_equal(np.frombuffer(executable.state("sum"), np.float32), first)


def test_unknown_state_is_refused(cpu: CpuAccelerator) -> None:
    assert refusal(lambda: cpu.load(subject.module()).state("none")).expected == "sum"


def test_aux_inputs_are_read(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.AUXILIARY)
    gain = cpu.allocate("gain", 4)
    assert refusal(loaded.submit).what == f"buffer {subject.AUX} is not bound"
    loaded.bindings.bind_aux(0, gain)
    loaded.frame.mapping.array[:] = 10
    for value in (0.5, 4.0):
        gain.view.cast("f")[0] = value
        assert (loaded.run() == 10 * value).all()


def test_a_frame_in_a_sealed_mapping_is_read_without_a_copy(cpu: CpuAccelerator) -> None:
    descriptor = create_sealed("frame", subject.COUNT)
    writer, reader = Mapping.of(descriptor, subject.COUNT, writable=True), Mapping.of(descriptor, subject.COUNT)
    os.close(descriptor)
    loaded = Loaded(cpu, subject.RUN)
    frame = cpu.import_frame(reader)
    assert frame.zero_copy
    assert not frame.writable
    assert frame.address == reader.address
    loaded.bindings.bind_frame(0, frame)
    for value in (7, 20):
        writer.array[:] = value
        assert (loaded.run() == value - 7).all()


def test_outputs_can_be_written_straight_into_shared_memory(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.RUN)
    shared = Mapping.anonymous(3 * PAGE_BYTES)
    loaded.bindings.bind_output(0, cpu.import_output(shared).part(PAGE_BYTES, subject.OUT_BYTES))
    loaded.frame.mapping.array[:] = 8
    loaded.run()
    assert (shared.array[PAGE_BYTES : PAGE_BYTES + subject.OUT_BYTES].view(np.float32) == 1).all()
    assert not shared.array[:PAGE_BYTES].any()
    descriptor = create_sealed("ring", PAGE_BYTES)
    reader = Mapping.of(descriptor, PAGE_BYTES)
    os.close(descriptor)
    assert refusal(lambda: cpu.import_output(reader)).code is HalCode.BINDING


def test_an_unaligned_frame_is_refused(cpu: CpuAccelerator) -> None:
    mapping = Mapping.anonymous(PAGE_BYTES)
    mapping.address += 4
    assert refusal(lambda: cpu.import_frame(mapping)).code is HalCode.ALIGNMENT


def test_sealed_weights_are_mapped_and_open_ones_refused(cpu: CpuAccelerator) -> None:
    content = bytes(PAGE_BYTES) + bytes(range(256)) * 16
    sealed = seal_copy("fenced-test-bundle", content)
    module = subject.module()
    span = SealedSpan(sealed, PAGE_BYTES, subject.OUT_BYTES)
    weights = memoryview(content)[PAGE_BYTES:]
    executable = cpu.load(replace(module, weights=weights, weights_span=span))
    os.close(sealed)
    assert executable._weights is not None
    assert not executable._weights.writable
    assert bytes(executable._weights.view) == bytes(weights)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "fenced-test-bundle" in line]
    assert [line.split()[1] for line in mapped] == ["r--s"]
    loose = create_sealed("loose", 2 * PAGE_BYTES)
    error = refusal(lambda: cpu.load(replace(module, weights_span=SealedSpan(loose, 0, subject.OUT_BYTES))))
    os.close(loose)
    assert error.code is HalCode.SEAL_MISSING


def test_code_pages_are_never_writable(cpu: CpuAccelerator) -> None:
    cpu.load(subject.module())
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:fenced-code" in line]
    assert any(line.split()[1] == "r-xp" for line in maps)
    assert not any("w" in line.split()[1] and "x" in line.split()[1] for line in maps)


def test_several_modules_live_beside_each_other(cpu: CpuAccelerator) -> None:
    one, two = Loaded(cpu, subject.RUN), Loaded(cpu, subject.STATEFUL)
    one.frame.mapping.array[:] = 17
    two.frame.mapping.array[:] = 1
    first, second = one.submit(), two.submit()
    for fence in (second, first):
        assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.SIGNALED
    assert one.executable.timeline.identity != two.executable.timeline.identity
    assert cpu.memory().executables == 2
    cpu.unload(one.executable)
    assert (two.run() == 2).all()
    assert refusal(lambda: cpu.unload(one.executable)).code is HalCode.BINDING


def test_code_is_not_taken_for_another_modules_when_its_descriptor_has_that_ones_number(
    cpu: CpuAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a camera connects while the first module is loaded, and leaves before the second is."""
    connected: list[int] = []
    eventfd = os.eventfd

    def beside(*given: int) -> int:
        connected.append(os.dup(0))
        return eventfd(*given)

    monkeypatch.setattr(os, "eventfd", beside)
    first = Loaded(cpu, subject.RUN)
    monkeypatch.undo()
    for descriptor in connected:
        os.close(descriptor)
    widen = subject.KERNELS[0]
    doubles = replace(widen, source=widen.source.replace("= a[i]", "= 2 * a[i]"))
    second = Loaded(cpu, subject.RUN, code=memoryview(subject.code((doubles, *subject.KERNELS[1:]))))
    for loaded, wanted in ((first, 10 - 7), (second, 2 * 10 - 7)):  # the launches add 1, 2 and -10
        loaded.frame.mapping.array[:] = 10
        assert (loaded.run() == wanted).all()


def test_memory_is_counted(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.RUN)
    use = cpu.memory()
    assert (use.executables, use.arena_bytes, use.state_bytes) == (1, 2 * subject.OUT_BYTES, subject.OUT_BYTES)
    assert use.weights_bytes == subject.OUT_BYTES
    assert use.code_bytes == len(subject.code())
    assert use.allocated_bytes == subject.COUNT + subject.OUT_BYTES
    cpu.unload(loaded.executable)
    del loaded
    assert cpu.memory().allocated_bytes == 0


def test_bindings_of_another_module_are_refused(cpu: CpuAccelerator) -> None:
    one, two = Loaded(cpu, subject.RUN), Loaded(cpu, subject.RUN)
    assert refusal(lambda: cpu.submit(one.executable, two.bindings)).code is HalCode.BINDING


def test_state_is_out_of_reach_while_a_run_is_in_flight(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.LONG)
    loaded.let_work(ENDLESS)
    fence = loaded.submit()
    assert refusal(lambda: loaded.executable.state("sum")).code is HalCode.BINDING
    assert refusal(loaded.executable.reset_state).code is HalCode.BINDING
    loaded.let_work(0)
    assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.SIGNALED


def test_a_cancelled_run_ends_between_two_launches(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.STEPPED)
    loaded.let_work(ENDLESS)
    fence = loaded.submit()
    loaded.executable.cancel()
    loaded.let_work(0)
    assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.ERROR
    assert fence.error is not None
    assert fence.error.code is HalCode.RUN_CANCELLED
    assert loaded.executable.launches_done() < subject.STEPS
    loaded.let_work(1)
    assert loaded.run()[0] == 1


def test_memory_of_a_run_in_flight_outlives_its_owner(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.LONG)
    descriptor = create_sealed("fenced-test-owner", subject.COUNT)
    writer = Mapping.of(descriptor, subject.COUNT, writable=True)
    writer.array[:4].view(np.uint32)[0] = ENDLESS
    del writer
    loaded.bindings.bind_frame(0, cpu.import_frame(Mapping.of(descriptor, subject.COUNT)))
    fence = loaded.submit()
    loaded.bindings.clear()
    assert "fenced-test-owner" in Path("/proc/self/maps").read_text()
    os.pwrite(descriptor, bytes(4), 0)  # which ends the run
    os.close(descriptor)
    assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.SIGNALED
    assert "fenced-test-owner" not in Path("/proc/self/maps").read_text()


def test_a_reset_that_meets_a_running_kernel_says_so(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.LONG)
    loaded.let_work(ENDLESS)
    fence = loaded.submit()
    cpu.latch(HalError(HalCode.DEVICE_HANG, "declared by the test"))
    assert refusal(lambda: cpu.reset(time.monotonic_ns())).code is HalCode.RESET_IMPOSSIBLE
    assert refusal(loaded.submit).code is HalCode.DEVICE_LATCHED
    assert fence.poll() is FenceStatus.ERROR
    loaded.let_work(0)
    cpu.reset(time.monotonic_ns() + LIMIT_NS)
    loaded.let_work(1)
    assert loaded.run()[0] == 1


def test_a_lost_device_takes_no_module_until_it_was_reset(cpu: CpuAccelerator) -> None:
    cpu.latch(HalError(HalCode.DEVICE_HANG, "as if"))
    assert refusal(lambda: cpu.load(subject.module())).code is HalCode.DEVICE_LATCHED
    assert cpu.memory().executables == 0
    cpu.reset(time.monotonic_ns() + LIMIT_NS)
    assert cpu.load(subject.module()).launches_done() == 0


def test_hangs_are_due_by_the_earliest_budget(cpu: CpuAccelerator) -> None:
    assert cpu.due_ns() is None
    loaded = Loaded(cpu, subject.LONG)
    loaded.let_work(ENDLESS)
    fence = loaded.submit()
    assert cpu.due_ns() == fence.submitted_ns + fence.budget_ns
    assert cpu.check(fence.submitted_ns + fence.budget_ns) is None
    cause = cpu.check(fence.submitted_ns + fence.budget_ns + 1)
    assert cause is not None
    assert cause.code is HalCode.DEVICE_HANG
    assert cpu.check(0) is cause
    loaded.let_work(0)
    cpu.reset(time.monotonic_ns() + LIMIT_NS)


def test_a_run_leaves_the_interpreter_to_others(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.LONG)
    loaded.let_work(ENDLESS)
    fence = loaded.submit()
    assert all(fence.poll() is FenceStatus.ACTIVE for _ in range(100))
    loaded.let_work(0)
    assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.SIGNALED


def test_submitting_grows_nothing(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.RUN)
    for _ in range(100):
        loaded.run()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(2000):
        fence = loaded.submit()
        fence.wait(time.monotonic_ns() + LIMIT_NS)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    gc.enable()
    assert after - before < 4096


def test_unloading_gives_back_threads_descriptors_and_mappings() -> None:
    cpu = CpuAccelerator(DeviceOptions())
    cpu.unload(cpu.load(subject.module()))
    threads, files = threading.active_count(), open_descriptors()
    before = Path("/proc/self/maps").read_text()
    for _ in range(20):
        loaded = Loaded(cpu, subject.RUN)
        loaded.run()
        cpu.unload(loaded.executable)
        del loaded
    assert threading.active_count() <= threads
    assert open_descriptors() <= files
    after = Path("/proc/self/maps").read_text()
    assert len(after.splitlines()) <= len(before.splitlines()) + 8  # the allocator's own
    assert after.count("fenced-code") <= before.count("fenced-code")  # earlier tests may have left some
    cpu.close()


def test_a_fence_that_outlives_its_module_keeps_its_status(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.RUN)
    fence = loaded.submit()
    fence.wait(time.monotonic_ns() + LIMIT_NS)
    unseen = loaded.submit()
    loaded.executable.idle_before(time.monotonic_ns() + LIMIT_NS)
    cpu.unload(loaded.executable)
    assert fence.poll() is FenceStatus.SIGNALED
    assert unseen.poll() is FenceStatus.SIGNALED


def test_a_closed_device_takes_nothing() -> None:
    cpu = CpuAccelerator(DeviceOptions())
    cpu.close()
    for act in (
        lambda: cpu.load(subject.module()),
        lambda: cpu.allocate("x", 1),
        lambda: cpu.import_frame(Mapping.anonymous(1)),
        lambda: cpu.import_output(Mapping.anonymous(1)),
        lambda: cpu.reset(0),
    ):
        assert refusal(act).code is HalCode.CLOSED


def test_each_launch_can_be_timed(cpu: CpuAccelerator) -> None:
    loaded = Loaded(cpu, subject.RUN)
    ends = loaded.executable.trace()
    fence = loaded.submit()
    fence.wait(time.monotonic_ns() + LIMIT_NS)
    stamps = [fence.started_ns, *ends[:4], fence.completed_ns]
    assert stamps == sorted(stamps)


def test_code_that_is_no_code_is_refused_before_it_is_mapped(cpu: CpuAccelerator) -> None:
    module = subject.module()
    with pytest.raises(AdmissionRefused) as caught:
        cpu.load(replace(module, code=memoryview(b"not an object")))
    assert caught.value.code is AdmissionCode.CODE
    foreign = bytearray(subject.code())
    foreign[18] ^= 1
    with pytest.raises(AdmissionRefused, match="made for ELF machine"):
        cpu.load(replace(module, code=memoryview(bytes(foreign))))
    assert cpu.memory().executables == 0


def test_a_runtime_of_another_version_is_refused(cpu: CpuAccelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_executable, "VERSION", 2)
    error = refusal(lambda: cpu.load(subject.module()))
    assert (error.code, error.expected, error.found) == (HalCode.QUEUE_VERSION, "2", "1")


def test_a_graph_without_weights_or_arena_needs_no_memory_for_them(cpu: CpuAccelerator) -> None:
    module = subject.module()
    entry = replace(module.graph.entrypoints[subject.LONG], first_launch=0, role=EntryRole.PRIMARY)
    used = (subject.FRAME, subject.OUT)
    launch = module.graph.launches[4]
    arguments = tuple(replace(a, buffer=used.index(a.buffer)) for a in launch.arguments)
    graph = replace(
        module.graph, arena_bytes=0, buffers=tuple(module.graph.buffers[i] for i in used),
        launches=(replace(launch, arguments=arguments),), aux=(), states=(), entrypoints=(entry,),
        outputs=tuple(replace(o, buffer=1) for o in module.graph.outputs),
    )  # fmt: skip
    assert {b.kind for b in graph.buffers} == {BufferKind.FRAME, BufferKind.OUTPUT}
    executable = cpu.load(replace(module, graph=graph, weights=memoryview(b"")))
    executable.reset_state()
    assert cpu.memory().arena_bytes == 0
