"""What every driver must keep, as checks on a real device: the suite behind `fenced selftest` and tests/conformance.

Each check loads the subject's module anew and either passes, fails with a finding, or is skipped where the subject has
no kernel for it. Checks look at memory the device wrote, never at a driver's word: outputs are poisoned before a run
and must be full the instant its fence signals. The suite is itself tested: `hal.broken` holds drivers that each break
one promise, and the check for it must fail them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from hal.accelerator import Accelerator, Module
from hal.conformance_hold import gives_back, rebound
from hal.conformance_loss import cancel, hang, long_of, queue_full
from hal.conformance_rig import CheckFailed, CheckSkipped, Rig, expect_refusal, wait_done
from hal.conformance_threads import load_beside
from hal.error import HalCode, HalError
from hal.fence import Fence, FenceStatus

_MS = 1_000_000
_LOOK_NS = 50 * _MS
_LONG_NS = 300 * _MS
_SHORT_NS = 5 * _MS
_SECOND_NS = 1_000_000_000
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Subject:
    """What is run. entrypoint: any quick one. long_entrypoint: one whose run lasts in proportion to the first u32 of
    its first frame, or None. many: how many runs the endurance check makes. limit_ns: when a run counts as lost.
    """

    module: Module
    entrypoint: int = 0
    long_entrypoint: int | None = None
    many: int = 1000
    limit_ns: int = 10 * _SECOND_NS


class Verdict(Enum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome; `detail` says what was seen."""

    check: str
    verdict: Verdict
    detail: str


def run_checks(accelerator: Accelerator, subject: Subject, only: tuple[str, ...] = ()) -> list[Finding]:
    """Run the suite (or the checks named in `only`) in order. The accelerator must be idle; it stays open.

    Raises KeyError for an unknown name. A driver that raises what it should not fails the check at hand.
    """
    return [run_check(accelerator, subject, name) for name in (only or tuple(CHECKS))]


def run_check(accelerator: Accelerator, subject: Subject, name: str) -> Finding:
    """Run one check of CHECKS."""
    check = CHECKS[name]
    try:
        detail = check(accelerator, subject)
    except CheckSkipped as skipped:
        return Finding(name, Verdict.SKIPPED, str(skipped))
    except CheckFailed as failed:
        return Finding(name, Verdict.FAILED, str(failed))
    except HalError as error:
        return Finding(name, Verdict.FAILED, f"the driver raised: {error}")
    return Finding(name, Verdict.PASSED, detail)


def _devices(accelerator: Accelerator, subject: Subject) -> str:
    listed, opened = accelerator.devices(), accelerator.properties()
    if opened.device_count != len(listed):
        raise CheckFailed(f"the driver lists {len(listed)} devices, the opened runtime sees {opened.device_count}")
    if opened.device not in listed:
        raise CheckFailed(f"the opened device {opened.device!r} is not among {listed}")
    return f"{opened.device}, {len(listed)} in all"


def _signals(accelerator: Accelerator, subject: Subject) -> str:
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        fence = rig.submit()
        wait_done(fence, subject.limit_ns)
        return f"signalled after {(time.monotonic_ns() - fence.submitted_ns) // 1000} us at most"


def _completion(accelerator: Accelerator, subject: Subject) -> str:
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        for _ in range(20):
            _full_at_signal(rig, subject.limit_ns)
        found = f"{rig.output_bytes} output bytes written at every signal"
    if subject.long_entrypoint is not None:  # a quick run may be over before anybody can look
        with Rig(accelerator, subject.module, subject.long_entrypoint) as rig:
            rig.calibrate(_SHORT_NS, subject.limit_ns)
            _full_at_signal(rig, subject.limit_ns)
    return found


def _full_at_signal(rig: Rig, limit_ns: int) -> None:
    """Two runs over opposite poisons, looked at the instant the fence is seen; polled, so that no wake-up hides it."""
    kept = []
    for poison in (0x5A, 0xA5):
        rig.poison(poison)
        fence = rig.submit()
        deadline_ns = time.monotonic_ns() + limit_ns
        while fence.poll() is FenceStatus.ACTIVE and time.monotonic_ns() < deadline_ns:
            pass
        kept.append(rig.kept(poison))
        if fence.status is not FenceStatus.SIGNALED:
            raise CheckFailed(f"the fence is {fence.status.name} after {limit_ns // _MS} ms")
        while not fence.quiet and time.monotonic_ns() < deadline_ns:
            pass  # a fence that signalled early: let its run end before the memory is poisoned again
    missing = rig.count_both(kept[0], kept[1])
    if missing:
        raise CheckFailed(f"the fence signalled with {missing} of {rig.output_bytes} output bytes not written")


def _long_run(accelerator: Accelerator, subject: Subject) -> str:
    target_ns, seen = _LONG_NS, ""
    for _ in range(_ATTEMPTS):
        with Rig(accelerator, subject.module, long_of(subject)) as rig:
            rig.calibrate(target_ns, subject.limit_ns)
            rig.poison(0xA5)
            fence = rig.submit()
            at_once = fence.poll()
            early = fence.wait(fence.submitted_ns + _LOOK_NS)
            untouched = rig.is_poison(0xA5) or fence.poll() is not FenceStatus.ACTIVE  # it may have ended since
            if early is FenceStatus.ACTIVE:
                late_ns = _long_run_end(rig, fence, untouched, subject.limit_ns + target_ns)
                if late_ns <= _SECOND_NS:
                    return f"ACTIVE and untouched at 50 ms of {(fence.completed_ns - fence.started_ns) // _MS} ms"
                seen = f"the fence was seen {late_ns // _MS} ms after the run's end"  # as below
                continue
            if rig.has_poison_words():
                raise CheckFailed(f"the fence is {early.name} at 50 ms and the output is still poisoned")
            took_ns = fence.completed_ns - fence.started_ns
            if took_ns < _LOOK_NS:
                target_ns *= 2  # faster than the trial runs said
            when = "when submit returned" if at_once is not FenceStatus.ACTIVE else "at 50 ms"
            seen = f"a run of {took_ns // _MS} ms was over {when}"  # or the machine stood still: try again
    raise CheckFailed(f"no long run was seen ACTIVE and ending in time: {seen}")


def _long_run_end(rig: Rig, fence: Fence, untouched: bool, limit_ns: int) -> int:
    """How long after the run's end its fence was seen, in nanoseconds."""
    wait_done(fence, limit_ns)
    late_ns = time.monotonic_ns() - fence.timeline.to_monotonic(fence.completed_ns)
    if not untouched:
        raise CheckFailed("output was written while its fence was still ACTIVE, 50 ms into a long run")
    if rig.has_poison_words():
        raise CheckFailed("the fence of a long run signalled with poisoned output")
    return late_ns


def _deadline(accelerator: Accelerator, subject: Subject) -> str:
    for _ in range(_ATTEMPTS):
        with Rig(accelerator, subject.module, long_of(subject)) as rig:
            rig.calibrate(_LONG_NS, subject.limit_ns)
            fence = rig.submit()
            status = fence.wait(fence.submitted_ns + 20 * _MS)
            after_ns = time.monotonic_ns() - fence.submitted_ns
            wait_done(fence, subject.limit_ns)
            if status is FenceStatus.ACTIVE:
                return f"a wait of 20 ms returned after {after_ns // _MS} ms, ACTIVE"
    raise CheckFailed(f"a wait of 20 ms returned after {after_ns // _MS} ms with {status.name}")


def _fresh_output(accelerator: Accelerator, subject: Subject) -> str:
    seen = []
    for seeds in ((1, 2), (1, 1)):
        with Rig(accelerator, subject.module, subject.entrypoint) as rig:
            for run, seed in enumerate(seeds):
                if run:  # the first begins with the state that loading has given it
                    rig.reset()
                rig.fill(seed)
                wait_done(rig.submit(), subject.limit_ns)
                seen.append(rig.output())
    first, other, loaded_again, after_reset = seen
    if first == other:
        raise CheckFailed("two different inputs gave the same output: it is stale or constant")
    if first != loaded_again:
        raise CheckFailed("the same input gave two different outputs, each the first after the module was loaded")
    if first != after_reset:
        raise CheckFailed("the same input gave two different outputs, as loaded and after a reset of the state")
    return "different inputs, different outputs; the same input, the same bytes"


def _bounds(accelerator: Accelerator, subject: Subject) -> str:
    with Rig(accelerator, subject.module, subject.entrypoint, guarded=True) as rig:
        for poison in (0x5A, 0xA5):
            rig.fill(1)
            before = rig.inputs()
            rig.poison_all(poison)
            wait_done(rig.submit(), subject.limit_ns)
            if not rig.guards_are(poison):
                raise CheckFailed("bytes outside the output were written")
            if rig.inputs() != before:
                raise CheckFailed("an input was written")
        return "nothing written outside the outputs"


def _residency(accelerator: Accelerator, subject: Subject) -> str:
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        before = rig.executable.launches_done()
        wait_done(rig.submit(), subject.limit_ns)
        counted, wanted = rig.executable.launches_done() - before, rig.entry.launch_count
        if counted != wanted:
            raise CheckFailed(f"the device counted {counted} of {wanted} launches: the host ran the rest")
        return f"the device counted {counted} launches"


def _times(accelerator: Accelerator, subject: Subject) -> str:
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        previous_ns = 0
        for run in range(20):
            fence = rig.submit()
            wait_done(fence, subject.limit_ns)
            seen_ns = time.monotonic_ns()
            timeline = fence.timeline
            started_ns, completed_ns = fence.started_ns, fence.completed_ns
            if started_ns > completed_ns or started_ns < previous_ns:
                raise CheckFailed(f"run {run}: device time goes back: {previous_ns}, {started_ns}, {completed_ns}")
            first_ns = fence.submitted_ns - timeline.clock_error_ns
            last_ns = seen_ns + timeline.clock_error_ns
            if not first_ns <= timeline.to_monotonic(started_ns) <= timeline.to_monotonic(completed_ns) <= last_ns:
                raise CheckFailed(f"run {run}: device times {started_ns}..{completed_ns} are not between {first_ns} "
                                  f"and {last_ns} of CLOCK_MONOTONIC")  # fmt: skip
            previous_ns = completed_ns
        return "start and end lie between submit and signal, in order"


def _order(accelerator: Accelerator, subject: Subject) -> str:
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        for _ in range(50):
            first, second = rig.submit(), rig.submit()
            if second.value != first.value + 1:
                raise CheckFailed(f"two submissions have timeline values {first.value} and {second.value}")
            wait_done(second, subject.limit_ns)
            if first.poll() is not FenceStatus.SIGNALED:
                raise CheckFailed(f"run {second.value} is done, and run {first.value} before it is {first.status.name}")
        return "runs end in the order of submission"


def _rotation(accelerator: Accelerator, subject: Subject) -> str:
    seeds = (1, 2, 3, 4, 5, 6)
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        rig.reset()
        expected = []
        for seed in seeds:
            rig.fill(seed)
            wait_done(rig.submit(), subject.limit_ns)
            expected.append(rig.output())
        rig.reset()
        lanes = [rig.lane() for _ in range(3)]
        fences: list[Fence] = []
        for index, seed in enumerate(seeds):
            lane = lanes[index % 3]
            if index >= 3:
                wait_done(fences[index - 3], subject.limit_ns)
                if lane.output() != expected[index - 3]:
                    raise CheckFailed(f"the output of run {index - 3} was changed by a later run")
            lane.fill(seed)
            fences.append(lane.submit())
        for index in (3, 4, 5):
            wait_done(fences[index], subject.limit_ns)
            if lanes[index % 3].output() != expected[index]:
                raise CheckFailed(f"with three runs in flight, run {index} gives another output than alone")
        return "three in flight, each with its own result"


def _many(accelerator: Accelerator, subject: Subject) -> str:
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        rig.reset()
        flying = [rig.submit(), rig.submit()]
        first = flying[0].value
        for _ in range(subject.many - 2):
            wait_done(flying.pop(0), subject.limit_ns)
            flying.append(rig.submit())
        for fence in flying:
            wait_done(fence, subject.limit_ns)
        if fence.value != first + subject.many - 1:
            raise CheckFailed(f"{subject.many} runs moved the timeline by {fence.value - first + 1}")
        return f"{subject.many} runs"


def _bindings(accelerator: Accelerator, subject: Subject) -> str:
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        empty = rig.executable.bindings(subject.entrypoint)
        expect_refusal(HalCode.BINDING_MISSING, lambda: accelerator.submit(rig.executable, empty))
        small = accelerator.allocate("conformance", 1)
        expect_refusal(HalCode.BINDING, lambda: empty.bind_frame(0, small))
        output = rig.lane()
        expect_refusal(HalCode.BINDING_ALIAS, output.bind_output_to_frame)
        expect_refusal(HalCode.UNKNOWN_ENTRYPOINT, lambda: rig.executable.bindings(1 << 16))
        return "missing, small, shared and unknown bindings are refused"


def _pollable(accelerator: Accelerator, subject: Subject) -> str:
    with Rig(accelerator, subject.module, subject.entrypoint) as rig:
        for _ in range(20):
            rig.executable.timeline.drain()
            fence = rig.submit()
            if not rig.readable_within(fence, subject.limit_ns):
                raise CheckFailed("the fence's descriptor never turned readable")
            fence.timeline.drain()
            if fence.poll() is not FenceStatus.SIGNALED:
                raise CheckFailed(f"the descriptor is readable and the fence is {fence.status.name}")
        return "the descriptor turns readable when the fence signals"


CHECKS: dict[str, Callable[[Accelerator, Subject], str]] = {
    "devices": _devices,
    "signals": _signals,
    "completion": _completion,
    "pollable": _pollable,
    "fresh-output": _fresh_output,
    "bounds": _bounds,
    "residency": _residency,
    "times": _times,
    "order": _order,
    "rotation": _rotation,
    "bindings": _bindings,
    "rebound": rebound,
    "gives-back": gives_back,
    "many": _many,
    "load-beside": load_beside,
    "long-run": _long_run,
    "deadline": _deadline,
    "queue-full": queue_full,
    "cancel": cancel,
    "hang": hang,
}
"""Every check by name, in the order they are run."""
