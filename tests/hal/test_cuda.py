"""The CUDA driver over a fake libcuda: what it refuses, what it copies, what it leaves, and every call that fails.

The fake is below the driver (`tests/support/fake_cuda`); no GPU has run any of this.
"""

from __future__ import annotations

import gc
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from abi.graph import Graph
from hal.accelerator import DeviceOptions, Module, open_accelerator
from hal.conformance_rig import Rig
from hal.cuda import CudaAccelerator
from hal.cuda_api import FOLDERS, CudaApi
from hal.error import HalCode, HalError
from hal.fence import FenceStatus
from hal.run_queue import AHEAD
from tests.conformance import subject
from tests.support import cuda
from tests.support.descriptors import open_descriptors
from tests.support.opencl import frame_of, refused, values

LIMIT_NS = cuda.LIMIT_NS
HELD = ("contexts", "modules", "memory", "registered", "streams", "events", "graphs")
TRAP = subject.RUN


@pytest.fixture
def fake() -> Iterator[cuda.FakeGpu]:
    gpu = cuda.FakeGpu()
    yield gpu
    gpu.heal()


@pytest.fixture
def gpu(fake: cuda.FakeGpu) -> Iterator[CudaAccelerator]:
    opened = cuda.open_fake()
    yield opened
    fake.heal()  # a GPU that failed gives nothing back
    opened.close()


def changed(program: int, **more: object) -> Module:
    """The subject with one program changed."""
    module = cuda.module()
    programs = list(module.graph.programs)
    programs[program] = replace(programs[program], **more)  # type: ignore[arg-type]
    return replace(module, graph=replace(module.graph, programs=tuple(programs)))


def done(rig: Rig) -> None:
    fence = rig.submit()
    assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.SIGNALED, fence.error


# opening


@pytest.mark.skipif(
    any(os.path.exists(f"{folder}/libcuda.so.1") for folder in FOLDERS), reason="NVIDIA's driver is here"
)
def test_a_machine_without_the_vendors_driver_is_refused_by_name() -> None:
    error = refused(lambda: open_accelerator("cuda"), HalCode.DRIVER_UNAVAILABLE)
    assert "libcuda.so.1 is missing" in str(error)


def test_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"no library")
    refused(lambda: CudaApi(str(tmp_path / "libcuda.so.1")), HalCode.DRIVER_UNAVAILABLE)
    error = refused(lambda: CudaApi("libc.so.6"), HalCode.DRIVER_UNAVAILABLE)
    assert "the driver has no cu" in str(error)


@pytest.mark.parametrize(("knob", "value"), [("version", 12030), ("devices", 0), ("devices", 2), ("host_register", 0)])
def test_a_machine_that_will_not_do_is_refused(fake: cuda.FakeGpu, knob: str, value: int) -> None:
    fake.set(knob, value)
    refused(cuda.open_fake, HalCode.DRIVER_UNAVAILABLE)


def test_one_of_several_gpus_is_opened_by_its_name(fake: cuda.FakeGpu) -> None:
    fake.set("devices", 2)
    opened = cuda.open_fake(DeviceOptions(device="CUDA:1 Fake GPU 1"))
    assert opened.properties().device == "CUDA:1 Fake GPU 1"
    assert opened.properties().device_count == len(opened.devices()) == 2
    opened.close()
    refused(lambda: cuda.open_fake(DeviceOptions(device="CUDA:2 Fake GPU 2")), HalCode.DRIVER_UNAVAILABLE)


@pytest.mark.parametrize(
    ("options", "code"),
    [(DeviceOptions(pin_cores=(0,)), HalCode.NOT_PERMITTED), (DeviceOptions(lock_memory=True), HalCode.NOT_PERMITTED),
     (DeviceOptions(queue_slots=3), HalCode.SIZE)],
)  # fmt: skip
def test_options_that_mean_nothing_here_are_refused(options: DeviceOptions, code: HalCode) -> None:
    refused(lambda: cuda.open_fake(options), code)


def test_the_environment_cannot_make_the_vendors_driver_load_or_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/tmp/evil.so")
    monkeypatch.setenv("CUDA_FORCE_PTX_JIT", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    for name in ("CUDA_DISABLE_PTX_JIT", "CUDA_CACHE_DISABLE", "CUDA_MODULE_LOADING", "CUDA_DEVICE_ORDER"):
        monkeypatch.setenv(name, "")
    cuda.open_fake().close()
    held = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
    assert held == {
        "CUDA_VISIBLE_DEVICES": "0", "CUDA_DISABLE_PTX_JIT": "1", "CUDA_CACHE_DISABLE": "1",
        "CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }  # fmt: skip


# code


def with_section(offset: int, size: int) -> bytes:
    """A cubin with one section that lies at `offset`."""
    header = bytearray(cuda.cubin())
    struct.pack_into("<Q", header, 40, 64)
    struct.pack_into("<HH", header, 58, 64, 1)
    return bytes(header) + struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, offset, size, 0, 0, 0, 0)


BAD_CODE = {
    "text that would be compiled": b".version 8.0\n.target sm_90\n" + bytes(64),
    "a host's object": cuda.cubin(machine=62),
    "another architecture": cuda.cubin(flags=75),
    "cut off": cuda.cubin()[:40],
    "a section outside": with_section(120, 1000),
    "a section that wraps": with_section(2**64 - 8, 16),
    "a table outside": with_section(64, 0)[:100],
}


@pytest.mark.parametrize("case", BAD_CODE)
def test_code_for_anything_but_this_gpu_is_refused(gpu: CudaAccelerator, fake: cuda.FakeGpu, case: str) -> None:
    before = {name: fake.get(name) for name in HELD}
    error = refused(lambda: gpu.load(cuda.module(code=BAD_CODE[case])), HalCode.CODE)
    # all but the architecture is seen here, before the vendor's loader sees it
    assert ("program widen is no cubin" in str(error)) == (case != "another architecture")
    assert {name: fake.get(name) for name in HELD} == before


def test_a_whole_cubin_is_taken(gpu: CudaAccelerator) -> None:
    gpu.unload(gpu.load(cuda.module(code=with_section(64, 64))))


def test_a_kernel_that_is_not_there_or_takes_other_parameters_is_refused(gpu: CudaAccelerator) -> None:
    refused(lambda: gpu.load(changed(0, symbol="nothing")), HalCode.CODE)
    error = refused(lambda: gpu.load(changed(0, symbol="add")), HalCode.CODE)  # one parameter more
    assert "launch 0 (add)" in str(error)
    refused(lambda: gpu.load(changed(4, symbol="add")), HalCode.CODE)  # a number where a pointer is given


def with_launch(index: int, **more: object) -> Module:
    module = cuda.module()
    launches = list(module.graph.launches)
    launches[index] = replace(launches[index], **more)  # type: ignore[arg-type]
    return replace(module, graph=replace(module.graph, launches=tuple(launches)))


def test_a_block_or_a_number_that_does_not_fit_is_refused(gpu: CudaAccelerator, fake: cuda.FakeGpu) -> None:
    fake.fail("cuFuncGetAttribute", 1)
    refused(lambda: gpu.load(cuda.module()), HalCode.DEVICE_LOST)
    refused(lambda: gpu.load(with_launch(1, values=(1 << 31,))), HalCode.CODE)
    wide = with_launch(1, values=(-(1 << 31),))
    gpu.unload(gpu.load(wide))


# memory


def test_frames_are_used_in_place_and_only_changed_addresses_are_written(
    gpu: CudaAccelerator, fake: cuda.FakeGpu
) -> None:
    with Rig(gpu, cuda.module(), subject.RUN) as rig:
        assert rig._main.imported[0].zero_copy
        done(rig)
        updates = fake.get("updates")
        for seed in (1, 2, 3):
            rig.fill(seed)
            done(rig)
            assert np.array_equal(values(rig), frame_of(rig) - 7)
        assert fake.get("updates") == updates
        other = rig.lane()
        other.fill(9)
        other.submit().wait(time.monotonic_ns() + LIMIT_NS)
        assert fake.get("updates") == updates + 2  # the first launch reads the frame, the last writes the output


def test_read_only_pages_that_the_gpu_cannot_use_are_copied_before_each_run(fake: cuda.FakeGpu) -> None:
    fake.set("read_only_register", 0)
    opened = cuda.open_fake()
    with Rig(opened, cuda.module(), subject.RUN) as rig:
        assert not rig._main.imported[0].zero_copy
        for seed in (1, 2, 3):
            rig.fill(seed)
            done(rig)
            assert np.array_equal(values(rig), frame_of(rig) - 7)
    opened.close()


def test_state_goes_to_the_host_and_back_between_runs(gpu: CudaAccelerator) -> None:
    with Rig(gpu, cuda.module(), subject.STATEFUL) as rig:
        done(rig)
        done(rig)
        held = np.frombuffer(rig.executable.state("sum"), np.float32)
        assert np.array_equal(held, 2 * frame_of(rig))
        rig.executable.state("sum")[:] = np.full(subject.COUNT, 5, np.float32).tobytes()
        done(rig)
        assert np.array_equal(values(rig), frame_of(rig) + 5)
        rig.reset()
        done(rig)
        assert np.array_equal(values(rig), frame_of(rig))
        refused(lambda: rig.executable.state("mean"), HalCode.BINDING)


def test_nothing_is_left_behind(fake: cuda.FakeGpu) -> None:
    def cycle() -> None:
        opened = cuda.open_fake()
        with Rig(opened, cuda.module(), subject.RUN) as rig:
            done(rig)
        opened.close()

    cycle()
    before, held = open_descriptors(), {name: fake.get(name) for name in HELD}
    for _ in range(10):
        cycle()
    assert open_descriptors() <= before
    assert all(fake.get(name) <= held[name] for name in HELD)  # earlier tests, whose runs failed, may have left some


@pytest.mark.parametrize(
    "call",
    ["cuModuleLoadData", "cuModuleGetFunction", "cuMemAlloc_v2", "cuStreamCreate", "cuEventCreate", "cuGraphCreate",
     "cuGraphAddKernelNode", "cuGraphInstantiateWithFlags", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"],
)  # fmt: skip
def test_a_load_that_fails_half_way_leaves_nothing(gpu: CudaAccelerator, fake: cuda.FakeGpu, call: str) -> None:
    gc.collect()
    before = {name: fake.get(name) for name in HELD}
    fake.fail(call, 2)
    refused(lambda: gpu.load(cuda.module()), HalCode.OUT_OF_MEMORY)
    assert {name: fake.get(name) for name in HELD} == before
    with Rig(gpu, cuda.module(), subject.RUN) as rig:
        done(rig)


# faults in a run


def trapped() -> Module:
    """The subject whose entrypoint `run` fails on the device in its first launch."""
    module = cuda.module()
    programs = (*module.graph.programs, replace(module.graph.programs[0], symbol="trap"))
    launches = (replace(module.graph.launches[0], program=len(programs) - 1), *module.graph.launches[1:])
    graph: Graph = replace(module.graph, programs=programs, launches=launches)
    return replace(module, graph=graph)


def test_a_kernel_that_fails_is_an_error_and_the_gpu_is_lost(fake: cuda.FakeGpu) -> None:
    opened = cuda.open_fake()
    executable = opened.load(trapped())
    with Rig(opened, cuda.module(), subject.LONG) as rig:
        bindings = executable.bindings(TRAP)
        bindings.bind_frame(0, rig._main.imported[0])
        bindings.bind_output(0, opened.allocate("output", subject.OUT_BYTES))
        fence = opened.submit(executable, bindings)
        assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.ERROR
        assert fence.error is not None
        assert fence.error.code is HalCode.DEVICE_LOST
        refused(lambda: opened.submit(executable, bindings), HalCode.DEVICE_LATCHED)
        cause = opened.check(time.monotonic_ns())
        assert cause is not None
        assert "CUDA_ERROR_LAUNCH_FAILED" in str(cause)
        refused(lambda: opened.reset(time.monotonic_ns() + LIMIT_NS), HalCode.RESET_IMPOSSIBLE)
        refused(lambda: opened.load(cuda.module()), HalCode.DEVICE_LATCHED)
        fake.heal()
    opened.close()


@pytest.mark.parametrize("call", ["cuEventRecord", "cuGraphExecKernelNodeSetParams", "cuGraphLaunch"])
def test_a_run_that_cannot_be_begun_never_starts(gpu: CudaAccelerator, fake: cuda.FakeGpu, call: str) -> None:
    with Rig(gpu, cuda.module(), subject.RUN) as rig:
        fake.fail(call, 1)
        with pytest.raises(HalError, match=call):
            rig.submit()
        assert rig.executable.timeline.in_flight == 0
        done(rig)
        assert np.array_equal(values(rig), frame_of(rig) - 7)


def test_a_run_whose_end_cannot_be_seen_is_no_success(gpu: CudaAccelerator, fake: cuda.FakeGpu) -> None:
    with Rig(gpu, cuda.module(), subject.RUN) as rig:
        fake.fail("cuEventRecord", 1, after=1)  # the event behind the launches
        fence = rig.submit()
        assert fence.wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.ERROR
        refused(rig.submit, HalCode.DEVICE_LATCHED)


def test_a_kept_run_that_cannot_be_begun_is_an_error(gpu: CudaAccelerator, fake: cuda.FakeGpu) -> None:
    with Rig(gpu, cuda.module(), subject.LONG) as rig:
        rig.calibrate(200_000_000, LIMIT_NS)  # the first is to be at work still when the last is submitted
        fake.fail("cuGraphLaunch", 1, after=AHEAD)
        fences = [rig.submit() for _ in range(AHEAD + 1)]
        assert fences[-1].wait(time.monotonic_ns() + LIMIT_NS) is FenceStatus.ERROR
        assert [fence.poll() for fence in fences[:-1]] == [FenceStatus.SIGNALED] * AHEAD
        assert gpu.check(time.monotonic_ns()) is not None


def test_a_reset_that_meets_a_running_kernel_says_so(gpu: CudaAccelerator) -> None:
    with Rig(gpu, cuda.module(), subject.LONG) as rig:
        rig.calibrate(200_000_000, LIMIT_NS)
        fence = rig.submit()
        gpu.latch(HalError(HalCode.DEVICE_HANG, "planted"))
        refused(lambda: gpu.reset(time.monotonic_ns()), HalCode.RESET_IMPOSSIBLE)
        assert not fence.quiet
        gpu.reset(time.monotonic_ns() + LIMIT_NS)
        assert (fence.poll(), fence.quiet) == (FenceStatus.ERROR, True)
        rig.fill_rounds(1)
        done(rig)


def test_a_buffer_of_another_gpu_is_refused(gpu: CudaAccelerator, fake: cuda.FakeGpu) -> None:
    other = cuda.open_fake()
    with Rig(gpu, cuda.module(), subject.RUN) as rig:
        bindings = rig.executable.bindings(subject.RUN)
        bindings.bind_frame(0, rig._main.imported[0])
        bindings.bind_output(0, other.allocate("output", subject.OUT_BYTES))
        refused(lambda: gpu.submit(rig.executable, bindings), HalCode.BINDING)
    other.close()
    refused(lambda: other.load(cuda.module()), HalCode.CLOSED)
