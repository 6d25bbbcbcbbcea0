"""The entrypoints of a spec by what timing found better: from the cache, and timed where it says nothing yet."""

from __future__ import annotations

from importlib.metadata import version

from lab.compile.choices import Choices
from lab.compile.entry import CapturedEntry, capture_entries
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.schedule import RULE_VERSION
from lab.compile.spec import Spec
from lab.compile.stages import Stages
from lab.compile.target import Target
from lab.compile.target_cpu import CpuTarget
from lab.compile.toolchain import cache_folder
from lab.compile.tune import tune
from lab.compile.tune_cache import Timed, TuneCache, cpu_model


def tuned_entries(
    spec: Spec, target: Target, seconds: float, stages: Stages
) -> tuple[tuple[CapturedEntry, ...], tuple[Timed, ...]]:
    """Every entrypoint, captured and checked, and the verdicts on its kernels, largest gain first.

    seconds: for timing kernels that the cache does not know. Raises CompileRefused as `capture_entries` does, and with
    TARGET for a target that is not this machine's CPU.
    """
    if not isinstance(target, CpuTarget) or not target.runs_here:
        raise CompileRefused(
            CompileRefusal.TARGET, "--tune", expected="the CPU target, on a machine of its architecture",
            found=target.text, todo="compile without --tune",
        )  # fmt: skip
    cache = TuneCache(cache_folder() / "tuned", _place(spec))
    choices = Choices({key: one.chosen for key, one in cache.timed.items() if one.chosen is not None})
    with choices.in_force():
        entries = capture_entries(spec, target, stages)
        found: dict[str, Timed] = {}
        if seconds:
            with stages("tune"):
                for one in entries:
                    if one.spec.outputs:
                        known, share_s = {**cache.timed, **found}, seconds / len(entries)
                        found |= tune(one, known, share_s, target=target, choices=choices, stages=stages)
            cache.add(found)
        better = {key: one.chosen for key, one in found.items() if one.chosen is not None}
        if better:
            choices.better.update(better)
            entries = capture_entries(spec, target, stages)
    programs = [kernel.program for one in entries for kernel in one.capture.kernels]
    target.tuning = choices.digest(programs)
    verdicts = {key: cache.timed[key] for key in map(choices.key, programs) if key in cache.timed}
    return entries, tuple(sorted(verdicts.values(), key=lambda one: (one.chosen_us - one.rule_us, one.kernel)))


def _place(spec: Spec) -> dict[str, str]:
    wanted = spec.target
    return {
        "arch": wanted.arch, "cpu": wanted.cpu, "threads": str(wanted.threads), "machine": cpu_model(),
        "rule": str(RULE_VERSION), "tinygrad": version("tinygrad"), "ziglang": version("ziglang"),
    }  # fmt: skip
