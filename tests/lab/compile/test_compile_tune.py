"""Timed search: what it finds is kept, decides the next compile, and passes the same checks."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.compile.compiler import compile_spec
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.toolchain import compile_context
from lab.compile.tune_cache import Timed, TuneCache
from tests.lab.compile.tiny_models import write_spec

PLACE = {"arch": "x86_64", "machine": "this"}
BETTER = Timed("r_4", (("UPCAST", 1, 0), ("THREAD", 0, 2)), 20.0, 15.0, 3)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tiny model's spec; what timing finds is kept in the test's own folder."""
    with compile_context("x86_64", "x86_64_v3", 2):
        from lab.compile import tuned  # noqa: PLC0415 (the device is open now)

        monkeypatch.setattr(tuned, "cache_folder", lambda: tmp_path / "cache")
        yield write_spec(tmp_path)


def options(bundle: Path) -> dict[str, Any]:
    from lab.sign.pack import open_checked  # noqa: PLC0415

    with open_checked(bundle) as (_, _, stated):
        return dict(stated.compiler.options)


def test_a_choice_by_time_is_compiled_checked_and_found_again(
    spec: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lab.compile import tune  # noqa: PLC0415

    real = tune._verdict

    def other_wins(kernel: Any, others: Any, times_us: Any) -> Timed:
        assert all(one > 0 for one in times_us)
        return real(kernel, others, [1000.0, *times_us[1:]])

    monkeypatch.setattr(tune, "_verdict", other_wins)
    first = compile_spec(spec, tmp_path / "first", tune_s=2)
    assert any(one.chosen is not None for one in first.tuning)
    monkeypatch.setattr(tune, "_times_us", None)  # whoever times again fails
    again = compile_spec(spec, tmp_path / "again", tune_s=0)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "first").read_bytes()
    assert again.tuning == first.tuning
    assert "better than by the rule" in again.to_text()
    assert options(tmp_path / "first")["tuned"]
    rule = compile_spec(spec, tmp_path / "rule")
    assert "tuned" not in options(tmp_path / "rule")
    assert [one.name for one in first.checks] == [one.name for one in rule.checks]
    assert [one.kernel for one in first.launches] != [one.kernel for one in rule.launches]


def test_a_choice_must_beat_the_rule_by_more_than_noise() -> None:
    with compile_context("x86_64", "x86_64_v3", 2):
        from lab.compile.capture import Kernel  # noqa: PLC0415
        from lab.compile.tune import _Other, _verdict  # noqa: PLC0415

    kernel = Kernel("k", "", (), False, 1, (), (), 0)
    others = [_Other(kernel, (("UPCAST", 0, one),)) for one in (2, 4)]
    assert _verdict(kernel, others, [10.0, 9.9, 9.8]).chosen is None
    assert _verdict(kernel, others, [10.0, 9.5, 9.0]) == Timed("k", (("UPCAST", 0, 4),), 10.0, 9.0, 2)
    assert _verdict(kernel, [], [10.0]) == Timed("k", None, 10.0, 10.0, 0)


def test_another_target_is_refused(spec: Path, tmp_path: Path) -> None:
    text = spec.read_text().replace('arch = "x86_64"', 'arch = "aarch64"').replace("x86_64_v3", "cortex_a78")
    spec.write_text(text)
    with pytest.raises(CompileRefused) as refused:
        compile_spec(spec, tmp_path / "bundle", without_device=True, tune_s=1)
    assert refused.value.code is CompileRefusal.TARGET
    assert refused.value.what == "--tune"


def test_verdicts_are_kept_and_added_to(tmp_path: Path) -> None:
    TuneCache(tmp_path, PLACE).add({"aa": BETTER})
    TuneCache(tmp_path, PLACE).add({"bb": replace(BETTER, chosen=None)})
    assert TuneCache(tmp_path, PLACE).timed == {"aa": BETTER, "bb": replace(BETTER, chosen=None)}


def test_verdicts_of_another_machine_or_damaged_ones_do_not_count(tmp_path: Path) -> None:
    cache = TuneCache(tmp_path, PLACE)
    cache.add({"aa": BETTER})
    other = TuneCache(tmp_path, {**PLACE, "machine": "other"})
    assert other.timed == {}
    other.path.write_bytes(cache.path.read_bytes())
    assert TuneCache(tmp_path, {**PLACE, "machine": "other"}).timed == {}
    written = cache.path.read_bytes()
    kernels = json.dumps({**json.loads(written), "kernels": ["aa"]}).encode()
    changed = written.replace(b'"UPCAST"', b'"UPCUT"')  # a choice that no kernel has
    assert changed != written
    for damage in (b"", b"[]", b'{"format": 2}', written.replace(b"rule_us", b"rule"), kernels, changed):
        cache.path.write_bytes(damage)
        assert TuneCache(tmp_path, PLACE).timed == {}
