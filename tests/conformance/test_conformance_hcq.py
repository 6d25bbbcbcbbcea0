"""The same suite, and the broken drivers, on tinygrad's emulated AMD GPU, in one child process."""

from __future__ import annotations

from typing import Any

import pytest

from hal.broken import Fault
from hal.conformance import CHECKS
from tests.support import hcq

LONG_CHECKS = {"long-run", "deadline", "queue-full", "cancel", "hang"}
SUITE = """
import json, threading
from hal.accelerator import open_accelerator
from hal.broken import BrokenAccelerator, Fault
from hal.conformance import CHECKS, Subject, run_check, run_checks
from tests.conformance import subject
from tests.support import hcq
MS = 1_000_000
module, found = hcq.module(), {}
def note(key, finding):
    found[key] = [finding.check, finding.verdict.value, finding.detail]
accelerator = open_accelerator("hcq")
for name in CHECKS:
    note(name, run_check(accelerator, Subject(module, subject.RUN, subject.LONG, many=200), name))
for entrypoint in (subject.STATEFUL, subject.AUXILIARY):
    for finding in run_checks(accelerator, Subject(module, entrypoint, many=20)):
        note(f"{entrypoint} {finding.check}", finding)
for fault in Fault:
    limit_ns = (500 if fault in (Fault.NEVER_SIGNALS, Fault.OUT_OF_ORDER) else 10_000) * MS
    tried = Subject(module, subject.quick_for(fault), subject.LONG, many=20, limit_ns=limit_ns)
    opened = open_accelerator("hcq")
    note(fault.name, run_check(BrokenAccelerator(opened, fault), tried, fault.caught_by))
    for thread in threading.enumerate():  # a check that failed leaves its loading thread at work
        if thread.name == "fenced-conformance":
            thread.join()
    opened.close()
accelerator.close()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def findings() -> dict[str, Any]:
    hcq.require_emulator()
    found: dict[str, Any] = hcq.run(SUITE)
    return found


@pytest.mark.parametrize("check", CHECKS)
def test_the_driver_conforms(findings: dict[str, Any], check: str) -> None:
    _, verdict, detail = findings[check]
    assert verdict == "passed", detail


@pytest.mark.parametrize("entrypoint", [2, 3], ids=["state", "aux"])
def test_state_and_aux_inputs_conform(findings: dict[str, Any], entrypoint: int) -> None:
    verdicts = {check: findings[f"{entrypoint} {check}"][1:] for check in CHECKS}
    assert not [one for one in verdicts.values() if one[0] == "failed"]
    assert {check for check, one in verdicts.items() if one[0] == "skipped"} == LONG_CHECKS


@pytest.mark.parametrize("fault", Fault)
def test_a_broken_driver_is_caught(findings: dict[str, Any], fault: Fault) -> None:
    check, verdict, detail = findings[fault.name]
    assert (check, verdict) == (fault.caught_by, "failed")
    assert detail
