"""The image and the lane bundle for aarch64, run in an emulated Debian (`make arm64`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from abi.graph import encode
from lab.compile.link import link
from lab.image import arm64
from lab.image.arm64 import FRAMES, Failed, _compare
from lab.image.emulated import EmulatedMachine, EmulationMissing
from tests.conformance import subject

ROOT = Path(__file__).parents[3] / "build/arm64/root"


def filmed(machine: str, shift: float = 0.0) -> dict[str, Any]:
    outputs = [{"lane_offset_m": [0.25 * number + shift]} for number in range(FRAMES)]
    return {"machine": machine, "outputs": outputs, "ledger": {"run": FRAMES}}


def test_outputs_beyond_the_tolerance_fail_and_so_do_frames_that_all_look_alike() -> None:
    _compare(filmed("x86_64"), filmed("aarch64", 1e-6))
    with pytest.raises(Failed, match="differ by more than"):
        _compare(filmed("x86_64"), filmed("aarch64", 1e-3))
    with pytest.raises(Failed, match="held against"):
        _compare(filmed("x86_64"), filmed("x86_64"))
    still = filmed("x86_64")
    still["outputs"] = [still["outputs"][0]] * FRAMES
    with pytest.raises(Failed, match="the same for every frame"):
        _compare(still, {**still, "machine": "aarch64"})


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_what_runs_in_the_root_is_of_the_other_architecture_and_sees_no_other_process() -> None:
    if not (ROOT / "usr/bin/python3").exists():
        pytest.skip("no Debian root for aarch64; `make arm64` makes it")
    try:
        machine = EmulatedMachine(ROOT, "aarch64")
    except EmulationMissing as missing:
        pytest.skip(str(missing))
    script = "import json, os, platform; print(json.dumps([platform.machine(), os.getpid(), os.listdir('/proc')]))"
    arch, pid, listed = json.loads(machine.run("/usr/bin/python3", "-c", script).stdout)
    assert (arch, pid) == ("aarch64", 1)
    assert "cpuinfo" not in listed
    assert [name for name in listed if name.isdigit()] == ["1"]


def test_the_whole_of_it_passes(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if not os.environ.get("FENCED_SLOW") or os.geteuid() != 0 or not (ROOT / "usr/bin/python3").exists():
        pytest.skip("a minute, as root, in the Debian root that `make arm64` makes, and FENCED_SLOW=1")
    arm64.run(EmulatedMachine(ROOT, "aarch64"), tmp_path)
    assert "12 frames of an x86-64 log" in capfd.readouterr().out


_CONFORM = """
import json, sys
sys.path.append("/opt/fenced/lib")
from abi.graph import decode
from hal.accelerator import Module, open_accelerator
from hal.conformance import Subject, run_checks

parts = [memoryview(open(f"/root/conform/{name}", "rb").read()) for name in ("graph", "code", "weights")]
subject = Subject(Module(decode(parts[0]), *parts[1:]), RUN, LONG, many=200, limit_ns=60_000_000_000)
accelerator = open_accelerator("cpu")
print(json.dumps([[one.check, one.verdict.value, one.detail] for one in run_checks(accelerator, subject)]))
"""


def test_the_driver_conforms_there_also_with_runs_that_hang_and_are_cancelled() -> None:
    if not os.environ.get("FENCED_SLOW") or os.geteuid() != 0 or not (ROOT / "opt/fenced/lib/hal").exists():
        pytest.skip("as root, in what `make arm64` leaves behind, and FENCED_SLOW=1")
    folder = ROOT / "root/conform"
    folder.mkdir(exist_ok=True)
    kernels = link(subject.KERNELS, arch="aarch64", cpu="generic")
    for name, data in (("graph", encode(subject.graph())), ("code", kernels), ("weights", bytes(subject.OUT_BYTES))):
        (folder / name).write_bytes(data)
    script = _CONFORM.replace("RUN", str(subject.RUN)).replace("LONG", str(subject.LONG))
    done = EmulatedMachine(ROOT, "aarch64").run("/usr/bin/python3", "-IBSc", script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) >= 18
    assert [one for one in found if one[1] != "passed"] == []


def test_a_machine_without_the_tools_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("lab.image.emulated._register", lambda arch: None)
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    with pytest.raises(EmulationMissing, match="apt-get install debootstrap"):
        EmulatedMachine(tmp_path / "root", "aarch64")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EmulationMissing, match="run it as root"):
        EmulatedMachine(tmp_path / "root", "aarch64")
