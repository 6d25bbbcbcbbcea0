"""A CPU bundle for another architecture: checked and admitted here, honest that it has not run, and refused here."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from abi.graph import decode
from daemon.offline import verify
from lab.compile.compiler import compile_spec
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.sign.pack import open_checked
from lab.sign.throwaway import sign_throwaway
from signing.refusal import RefusalCode, Refused
from tests.lab.compile.python_pipelines import write_entries
from tests.lab.compile.tiny_models import write_spec

MACHINE = os.uname().machine
ARCH, CPU, ELF_MACHINE = ("aarch64", "cortex_a78", 183) if MACHINE == "x86_64" else ("x86_64", "x86_64_v3", 62)
FOREIGN = {'arch = "x86_64"': f'arch = "{ARCH}"', 'cpu = "x86_64_v3"': f'cpu = "{CPU}"'}
TOLERANCE = 1e-3  # what the tiny spec allows against onnxruntime


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    report = compile_spec(write_spec(folder, None, FOREIGN), folder / "tiny.fenced", without_device=True)
    assert report.checks[-1].seen.startswith("not run: no device")
    return folder / "tiny.fenced"


def test_the_bundle_is_the_other_machines_and_says_that_it_has_not_run(foreign: Path) -> None:
    with open_checked(foreign) as (sealed, _, stated):
        assert (stated.target.driver, stated.target.arch) == ("cpu", ARCH)
        assert ("asimddp" if ARCH == "aarch64" else "avx2") in stated.target.cpu_features
        options = dict(stated.compiler.options)
        assert (options["ranOnDevice"], options["cpu"]) == (False, CPU)
        blobs = {blob.name: sealed.view(span) for blob, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}
        assert {one.absolute_tolerance for one in decode(blobs["graph"]).outputs} == {TOLERANCE}
        assert struct.unpack_from("<H", blobs["code"], 18) == (ELF_MACHINE,)


def test_this_machine_refuses_it_by_its_architecture(foreign: Path, tmp_path: Path) -> None:
    signed = tmp_path / "signed.fenced"
    signed.write_bytes(foreign.read_bytes())
    root = sign_throwaway(signed, tmp_path)
    with pytest.raises(Refused) as refused:
        verify(str(signed), [str(root)], None, "cpu")
    assert refused.value.code is RefusalCode.TARGET_MISMATCH
    assert (refused.value.what, ARCH in refused.value.expected) == ("architecture", True)
    assert MACHINE in refused.value.found


def test_two_compiles_are_equal_also_with_one_for_this_machine_between_them(foreign: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    own = compile_spec(write_spec(tmp_path / "own"), tmp_path / "own.fenced")
    assert own.checks[-1].seen.startswith("bit for bit")
    compile_spec(write_spec(tmp_path, None, FOREIGN), tmp_path / "again.fenced", without_device=True)
    assert (tmp_path / "again.fenced").read_bytes() == foreign.read_bytes()


def test_an_entrypoint_whose_goldens_could_have_no_tolerance_is_refused(tmp_path: Path) -> None:
    spec = write_entries(tmp_path, edits=FOREIGN)
    with pytest.raises(CompileRefused, match="writes state only") as refused:
        compile_spec(spec, tmp_path / "model.fenced", without_device=True)
    assert refused.value.code is CompileRefusal.TARGET
