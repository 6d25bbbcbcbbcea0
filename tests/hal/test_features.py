"""What the machine's processors can do, from each place the kernel tells it."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

import pytest

from hal import features
from hal.error import HalCode, HalError


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that tells nothing; the test writes what it should tell."""
    for name in ("CPUINFO", "MODALIAS", "AUXV"):
        monkeypatch.setattr(features, name, tmp_path / name)
    return tmp_path


def test_this_machine_is_known() -> None:
    assert features.machine_features()
    assert features.cpu_name()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86 module aliases")
def test_the_module_alias_tells_the_same_as_cpuinfo() -> None:
    if not features.MODALIAS.exists():
        pytest.skip("this kernel shows no CPU module alias")
    told = features._from_modalias(features.MODALIAS.read_text())
    assert told == features.machine_features() & features._X86_BITS.keys()


def test_only_what_every_processor_has_counts(hidden: Path) -> None:
    (hidden / "CPUINFO").write_text("model name\t: X\nflags\t\t: avx avx2 fma\n\nmodel name\t: X\nflags\t\t: avx fma\n")
    assert features.machine_features() == {"avx", "fma"}
    assert features.cpu_name() == "X"


def test_aarch64_lists_its_features_under_another_name(hidden: Path) -> None:
    (hidden / "CPUINFO").write_text("Features\t: fp asimd asimddp\n")
    assert features.machine_features() == {"fp", "asimd", "asimddp"}
    assert features.cpu_name() == platform.machine()


def test_a_hidden_cpuinfo_falls_back_to_the_module_alias(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    (hidden / "MODALIAS").write_text("cpu:type:x86,ven0002fam0019mod0011:feature:,0000,009C,0125,\n")
    assert features.machine_features() == {"avx", "avx2"}


def test_a_hidden_cpuinfo_falls_back_to_the_auxiliary_vector(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    (hidden / "AUXV").write_bytes(struct.pack("<6Q", 16, 1 << 1 | 1 << 20, 26, 1 << 1, 0, 0))
    assert features.machine_features() == {"asimd", "asimddp", "sve2"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_machine_that_tells_nothing_is_refused(hidden: Path, monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(HalError) as caught:
        features.machine_features()
    assert caught.value.code is HalCode.DRIVER_UNAVAILABLE


def test_every_missing_feature_is_named() -> None:
    assert features.missing_features(("b", "a", "c"), ("c",)) == ("a", "b")
    assert features.missing_features(("c",), ("c", "d")) == ()
