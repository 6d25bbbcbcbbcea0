"""The HCQ driver on tinygrad's emulated AMD GPU: memory, time, timelines, faults. Each test is a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from hal.accelerator import DeviceOptions
from hal.error import HalCode, HalError
from hal.hcq import HcqAccelerator
from tests.support import hcq

HEAD = """
import json, os, threading, time
from dataclasses import replace
import numpy as np
from hal.accelerator import DeviceOptions, Module, open_accelerator
from hal.conformance import Subject, run_checks
from hal.conformance_rig import Rig, wait_done
from hal.error import HalError
from hal.hcq import HcqAccelerator
from hal.hcq_memory import HostMemory
from hal.memory import PAGE_BYTES, Mapping
from tests.conformance import subject
from tests.support import hcq
S = 1_000_000_000
module = hcq.module()
accelerator = open_accelerator("hcq")
raw = accelerator._device.raw
def values(rig): return np.frombuffer(rig.output(), np.float32)
def frame(rig): return np.frombuffer(rig.inputs()[0], np.uint8).astype(np.float32)
def right(rig, seed=1):
    rig.fill(seed)
    wait_done(rig.submit(), 20 * S)
    return bool(np.array_equal(values(rig), frame(rig) - 7))
def code_of(act):
    try:
        act()
    except HalError as error:
        return [error.code.value, str(error)]
    return ["accepted", ""]
"""


def on_emulator(code: str) -> Any:
    hcq.require_emulator()
    return hcq.run(HEAD + code)


def test_options_without_meaning_are_refused() -> None:
    for options, code in (
        (DeviceOptions(pin_cores=(0,)), HalCode.NOT_PERMITTED),
        (DeviceOptions(fifo_priority=1), HalCode.NOT_PERMITTED),
        (DeviceOptions(queue_slots=0), HalCode.SIZE),
        (DeviceOptions(queue_slots=3), HalCode.SIZE),
    ):
        with pytest.raises(HalError) as caught:
            HcqAccelerator(options)
        assert caught.value.code is code


def test_results_state_and_aux_inputs_are_right_and_memory_is_given_back() -> None:
    found = on_emulator("""
rows = {}
with Rig(accelerator, module, subject.RUN) as rig:
    rows["run"] = right(rig, 1) and right(rig, 2)
    rows["zero copy"] = [buffer.zero_copy for buffer in (*rig._main.imported, *rig._main.outputs)]
with Rig(accelerator, module, subject.AUXILIARY) as rig:
    rig.fill(3)
    wait_done(rig.submit(), 20 * S)
    gain = np.frombuffer(rig.inputs()[1], np.float32)[0]
    rows["aux"] = bool(gain not in (0.0, 1.0) and np.array_equal(values(rig), frame(rig) * gain))
with Rig(accelerator, module, subject.STATEFUL) as rig:
    for _ in range(2):
        wait_done(rig.submit(), 20 * S)
    state = rig.executable.state("sum")
    rows["state seen"] = bool(np.array_equal(np.frombuffer(state, np.float32), 2 * frame(rig)))
    np.frombuffer(state, np.float32)[:] = 1000.0
    wait_done(rig.submit(), 20 * S)
    rows["state taken"] = bool(np.array_equal(values(rig), 1000 + frame(rig)))
    rig.reset()
    wait_done(rig.submit(), 20 * S)
    rows["state reset"] = bool(np.array_equal(values(rig), frame(rig)))
    rows["no state"] = code_of(lambda: rig.executable.state("other"))[0]
del rig, state
def held():
    import gc
    gc.collect()
    return len(gpu.driver.object_by_handle)
def once():
    with Rig(accelerator, module, subject.RUN) as rig:
        return right(rig) and accelerator.memory().executables == 1
once()
before = held()
for _ in range(3):
    once()
rows["objects"] = held() - before
rows["executables"] = accelerator.memory().executables
pages = Mapping.anonymous(2 * PAGE_BYTES)
buffer = accelerator.import_output(pages)
rows["once"] = accelerator.import_output(pages).memory is buffer.memory
pages.array[:] = 7
del buffer
held()
rows["pages"] = int(pages.array.sum())  # still mapped: they are not tinygrad's to unmap
accelerator.close()
rows["closed"] = code_of(lambda: accelerator.load(module))[0]
print(json.dumps(rows))
""")
    assert found == {
        "run": True, "zero copy": [True, True], "aux": True, "state seen": True, "state taken": True,
        "state reset": True, "no state": "binding-refused", "objects": 0, "executables": 0, "once": True,
        "pages": 7 * 2 * 4096, "closed": "closed",
    }  # fmt: skip


def test_pages_that_the_kernel_driver_refuses_are_worked_on_as_copies() -> None:
    """As KFD refuses pages that may only be read; and, in the second part, as a device that takes no host pages."""
    found = on_emulator("""
import errno
alloc, flags = raw.iface.alloc, []
def refusing(size, cpu_addr=None, **keywords):
    if cpu_addr is not None and not may_write(cpu_addr):
        raise OSError(errno.EFAULT, "Bad address")
    return alloc(size, cpu_addr=cpu_addr, **keywords)
def may_write(address):
    if refuse_all:
        return False
    for line in open("/proc/self/maps"):
        first, last = (int(one, 16) for one in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1][1] == "w"
    return True
raw.iface.alloc, refuse_all, rows = refusing, False, []
for refuse_all in (False, True):
    with Rig(accelerator, module, subject.RUN) as rig:
        rows.append([right(rig, 1), right(rig, 2), rig._main.imported[0].zero_copy, rig._main.outputs[0].zero_copy])
refuse_all = True
checks = ("completion", "fresh-output", "bounds", "order", "rotation")
findings = run_checks(accelerator, Subject(module, subject.RUN), checks)
findings += run_checks(accelerator, Subject(module, subject.STATEFUL), ("fresh-output", "rotation"))
rows.append([finding.detail for finding in findings if finding.verdict.value != "passed"])
taken, take = threading.Event(), HostMemory.take
def take_late(memory):
    taken.wait(20)
    take(memory)
HostMemory.take = take_late
with Rig(accelerator, module, subject.STATEFUL) as rig:
    rig.fill(1)
    rig.submit()
    while raw.timeline_signal.value < raw.timeline_value - 1:
        time.sleep(0.001)
    second = rig.submit()  # the first has ended on the device, and its state is not back yet
    taken.set()
    wait_done(second, 20 * S)
    rows.append(bool(np.array_equal(values(rig), 2 * frame(rig))))
accelerator.close()
print(json.dumps(rows))
""")
    assert found == [[True, True, False, True], [True, True, False, False], [], True]


def test_a_timeline_that_nears_its_end_is_begun_anew_and_scratch_memory_may_move() -> None:
    found = on_emulator("""
rows = []
with Rig(accelerator, module, subject.RUN) as rig:
    signal = raw.timeline_signal
    raw.timeline_value = (1 << 31) - 2
    signal.value = raw.timeline_value - 1
    rows.append([right(rig, seed) for seed in range(6)])
    rows.append([raw.timeline_value < 10, raw.timeline_signal is not signal, raw.timeline_signal.value < 10])
    old = accelerator._device.scratch
    raw._ensure_has_local_memory(16384)  # as loading a program that spills does
    flying = [rig.submit(), rig.submit()]  # one in each lane
    rows.append([right(rig, seed) for seed in range(4)])
    lanes = {lane._scratch for lane in rig.executable._lanes[subject.RUN]}
    rows.append([old != accelerator._device.scratch, old in lanes, accelerator._device.scratch in lanes])
    gpu.paused = True
    rig.submit()
    raw.timeline_value = (3 << 30) + 5
    rows.append(code_of(rig.submit)[0])
    print(json.dumps(rows), flush=True)
    os._exit(0)
""")

    assert found == [[True] * 6, [True] * 3, [True] * 4, [True, False, True], "queue-full"]


def test_a_module_is_loaded_and_unloaded_while_a_run_does_not_end() -> None:
    found = on_emulator("""
with Rig(accelerator, module, subject.RUN) as rig:
    rig.fill(1)
    gpu.paused = True
    fences = [rig.submit() for _ in range(4)]
    second = accelerator.load(module)
    second.reset_state()
    accelerator.unload(second)
    rows = [[fence.poll().name for fence in fences], accelerator.memory().executables]
    gpu.paused = False
    for fence in fences:
        wait_done(fence, 20 * S)
    rows.append(bool(np.array_equal(values(rig), frame(rig) - 7)))
accelerator.close()
print(json.dumps(rows))
""")
    assert found == [["ACTIVE"] * 4, 1, True]


def test_code_for_nothing_and_kernels_with_other_arguments_are_refused() -> None:
    found = on_emulator("""
graph, rows = module.graph, []
def load(code=module.code, **changes):
    launches = (replace(graph.launches[0], **changes), *graph.launches[1:])
    return lambda: accelerator.load(Module(replace(graph, launches=launches), code, module.weights))
junk = memoryview(bytes(module.code.nbytes))
torn = bytearray(module.code)
torn[40:48] = (1 << 40).to_bytes(8, "little")  # e_shoff
for act in (load(junk), load(memoryview(torn)), load(values=(1, 2, 3)), load(values=(1 << 31,))):
    rows.append(code_of(act)[0])
rows.append(accelerator.memory().executables)
rows.append(code_of(load())[0])
rows.append(code_of(lambda: HcqAccelerator(DeviceOptions(device="AMD:7")))[0])
print(json.dumps(rows))
accelerator.close()
""")
    assert found[:4] == ["code-refused"] * 4
    assert found[4:] == [0, "accepted", "driver-unavailable"]


def test_an_endless_kernel_is_a_hang_that_no_reset_cures_and_the_process_can_exit() -> None:
    found = on_emulator("""
module = hcq.module(budget_ns=50_000_000)
executable, rows = accelerator.load(module), []
def submit(rounds):
    bindings = executable.bindings(subject.LONG)
    image = accelerator.allocate("frame", subject.COUNT)
    image.view[:4] = rounds.to_bytes(4, "little")
    bindings.bind_frame(0, image)
    bindings.bind_output(0, accelerator.allocate("output", subject.OUT_BYTES))
    return accelerator.submit(executable, bindings)
fences = [submit(0xFFFFFFFF), submit(1), submit(1)]
rows.append([fence.poll().name for fence in fences])
while accelerator.check(time.monotonic_ns()) is None:
    fences[0].wait(time.monotonic_ns() + 1_000_000)
rows.append([fence.poll().name for fence in fences])
rows.append(code_of(lambda: submit(1))[0])
rows.append(code_of(lambda: accelerator.load(module))[0])
from tinygrad.device import Device
def given_up(act):
    Device._opened_devices.add("AMD")
    return [code_of(act)[0], "AMD" not in Device._opened_devices]  # whose clean-up at exit would wait for the GPU
rows.append(given_up(lambda: accelerator.reset(time.monotonic_ns() + 100_000_000)))
rows.append([fences[0].quiet, fences[0].error.code.value])
rows.append(given_up(accelerator.close))
print(json.dumps(rows))
""")
    assert found == [
        ["ACTIVE"] * 3, ["ERROR"] * 3, "device-latched", "device-latched", ["reset-impossible", True],
        [False, "device-hang"], ["device-hang", True],
    ]  # fmt: skip


def test_a_fault_that_the_kernel_driver_reports_latches_the_device() -> None:
    found = on_emulator("""
rows = []
rig = Rig(accelerator, module, subject.RUN).__enter__()
gpu.paused = True
fence = rig.submit()
os.environ["MOCKGPU_EMU_FAULTADDR"] = "0x1234000"
while accelerator.check(time.monotonic_ns()) is None:
    fence.wait(time.monotonic_ns() + 1_000_000)
rows.append([fence.poll().name, fence.error.code.value, "0x1234000" in str(fence.error)])
rows.append(code_of(rig.submit)[0])
rows.append(code_of(lambda: accelerator.reset(time.monotonic_ns() + 100_000_000))[0])
print(json.dumps(rows), flush=True)
os._exit(0)
""")
    assert found == [["ERROR", "device-lost", True], "device-latched", "reset-impossible"]
