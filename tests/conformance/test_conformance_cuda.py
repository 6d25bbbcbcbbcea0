"""The same suite, and the broken drivers, on the CUDA driver over a fake libcuda. No GPU has run any of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hal.accelerator import Accelerator
from hal.broken import BrokenAccelerator, Fault
from hal.conformance import CHECKS, Subject, Verdict, run_check, run_checks
from tests.conformance import subject
from tests.support import cuda

SECOND_NS = 1_000_000_000
LONG_CHECKS = {"long-run", "deadline", "queue-full", "cancel", "hang"}


@pytest.fixture(scope="module")
def device() -> Iterator[Accelerator]:
    opened = cuda.open_fake()
    yield opened
    opened.close()


@pytest.mark.parametrize("check", CHECKS)
def test_the_driver_conforms(device: Accelerator, check: str) -> None:
    tried = Subject(cuda.module(), subject.RUN, subject.LONG, many=10_000)
    finding = run_check(device, tried, check)
    assert finding.verdict is Verdict.PASSED, finding.detail


@pytest.mark.parametrize("entrypoint", [subject.STATEFUL, subject.AUXILIARY])
def test_state_and_aux_inputs_conform(device: Accelerator, entrypoint: int) -> None:
    findings = run_checks(device, Subject(cuda.module(), entrypoint, many=100))
    assert not [finding for finding in findings if finding.verdict is Verdict.FAILED]
    assert {finding.check for finding in findings if finding.verdict is Verdict.SKIPPED} == LONG_CHECKS


@pytest.mark.parametrize("fault", Fault)
def test_a_broken_driver_is_caught(fault: Fault) -> None:
    limit_ns = SECOND_NS // 2 if fault in (Fault.NEVER_SIGNALS, Fault.OUT_OF_ORDER) else 10 * SECOND_NS
    tried = Subject(cuda.module(), subject.quick_for(fault), subject.LONG, many=100, limit_ns=limit_ns)
    opened = cuda.open_fake()
    finding = run_check(BrokenAccelerator(opened, fault), tried, fault.caught_by)
    assert (finding.verdict, finding.check) == (Verdict.FAILED, fault.caught_by)
    opened.close()
