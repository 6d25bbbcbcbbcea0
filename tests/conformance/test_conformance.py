"""One suite, every driver; and broken drivers, each of which one check must catch."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hal.accelerator import Accelerator, Executable, Module, open_accelerator
from hal.broken import BrokenAccelerator, Fault
from hal.conformance import CHECKS, Subject, Verdict, run_check, run_checks
from hal.error import HalCode, HalError
from tests.conformance import subject
from tests.support import opencl

SECOND_NS = 1_000_000_000
LONG_FENCE = (Fault.NEVER_SIGNALS, Fault.OUT_OF_ORDER)  # found by waiting in vain: wait less


@pytest.fixture(scope="module")
def cpu() -> Iterator[Accelerator]:
    accelerator = open_accelerator("cpu")
    yield accelerator
    accelerator.close()


@pytest.fixture(scope="module", params=["cpu", "opencl"])
def device(request: pytest.FixtureRequest) -> Iterator[Accelerator]:
    """Each driver in turn; one whose device this machine lacks is skipped."""
    if request.param == "opencl":
        opencl.require_device()
    accelerator = open_accelerator(request.param)
    yield accelerator
    accelerator.close()


@pytest.fixture(scope="module")
def tried() -> Subject:
    return Subject(subject.module(), subject.RUN, subject.LONG, many=10_000)


@pytest.mark.parametrize("check", CHECKS)
def test_the_driver_conforms(device: Accelerator, check: str) -> None:
    tried = Subject(subject.module(driver=device.name), subject.RUN, subject.LONG, many=10_000)
    finding = run_check(device, tried, check)
    assert finding.verdict is Verdict.PASSED, finding.detail


@pytest.mark.parametrize("entrypoint", [subject.STATEFUL, subject.AUXILIARY])
def test_state_and_aux_inputs_conform(device: Accelerator, entrypoint: int) -> None:
    findings = run_checks(device, Subject(subject.module(driver=device.name), entrypoint, many=100))
    failed = [finding for finding in findings if finding.verdict is Verdict.FAILED]
    assert not failed
    skipped = {finding.check for finding in findings if finding.verdict is Verdict.SKIPPED}
    assert skipped == {"long-run", "deadline", "queue-full", "cancel", "hang"}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_do_not_depend_on_the_number_of_workers(cpu: Accelerator, threads: int) -> None:
    checks = ("completion", "fresh-output", "rotation", "many")
    findings = run_checks(cpu, Subject(subject.module(threads), many=500), checks)
    assert [finding.verdict for finding in findings] == [Verdict.PASSED] * len(checks), findings


@pytest.mark.parametrize("fault", Fault)
def test_a_broken_driver_is_caught(device: Accelerator, fault: Fault) -> None:
    limit_ns = SECOND_NS // 2 if fault in LONG_FENCE else 10 * SECOND_NS
    module, quick = subject.module(driver=device.name), subject.quick_for(fault)
    tried = Subject(module, quick, subject.LONG, many=100, limit_ns=limit_ns)
    accelerator = open_accelerator(device.name)
    finding = run_check(BrokenAccelerator(accelerator, fault), tried, fault.caught_by)
    assert finding.verdict is Verdict.FAILED
    assert finding.check == fault.caught_by
    assert finding.detail
    accelerator.close()


def test_a_check_that_fails_leaves_no_thread_of_its_own(tried: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader is in the middle of loading, until it is waited for, when the owner's look at the device fails."""
    accelerator, waited_for = open_accelerator("cpu"), threading.Event()
    load, join = accelerator.load, threading.Thread.join

    def slow_load(module: Module) -> Executable:
        if threading.current_thread().name == "fenced-conformance":
            waited_for.wait(5)
        return load(module)

    def noted_join(thread: threading.Thread, timeout: float | None = None) -> None:
        waited_for.set()
        join(thread, timeout)

    monkeypatch.setattr(accelerator, "load", slow_load)
    monkeypatch.setattr(accelerator, "check", lambda now_ns: HalError(HalCode.DEVICE_HANG, "as if"))
    monkeypatch.setattr("hal.conformance_threads._Loader.join", noted_join)
    finding = run_check(accelerator, tried, "load-beside")
    left = [thread.name for thread in threading.enumerate() if thread.name == "fenced-conformance"]
    waited_for.set()
    assert finding.verdict is Verdict.FAILED
    assert "latched: device-hang" in finding.detail
    assert not left
    accelerator.close()


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        (Fault.NO_WORK, "the fence signalled with 4096 of 4096 output bytes not written"),
        (Fault.STALE_OUTPUT, "two different inputs gave the same output: it is stale or constant"),
        (Fault.DEVICE_COUNT, "the driver lists 1 devices, the opened runtime sees 2"),
        (Fault.WRITES_OUTSIDE, "bytes outside the output were written"),
        (Fault.HOST_FALLBACK, "the device counted 0 of 4 launches: the host ran the rest"),
        (Fault.LATE_BINDINGS, "a run wrote into what was bound after it was submitted"),
        (Fault.EARLY_RESET, "after the reset a run that was lost still wrote its output"),
    ],
)
def test_the_finding_says_what_is_broken(fault: Fault, detail: str, tried: Subject) -> None:
    accelerator = open_accelerator("cpu")
    assert run_check(BrokenAccelerator(accelerator, fault), tried, fault.caught_by).detail == detail
    accelerator.close()


def test_an_unknown_check_is_an_error(cpu: Accelerator, tried: Subject) -> None:
    with pytest.raises(KeyError):
        run_checks(cpu, tried, ("no-such-check",))
