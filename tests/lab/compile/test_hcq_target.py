"""Bundles for HCQ, on tinygrad's emulated AMD GPU: compiled in one process, replayed from data alone in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.compile.compiler import compile_spec
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec_toml import load_spec
from tests.lab.compile.python_pipelines import write_entries
from tests.lab.compile.tiny_models import write_spec
from tests.support import hcq

FOR_HCQ = {'driver = "cpu"': 'driver = "hcq"', 'arch = "x86_64"': 'arch = "gfx1100"', 'cpu = "x86_64_v3"\n': "",
           "threads = 2\n": ""}  # fmt: skip
COMPILE = """
import json, sys
from pathlib import Path
from lab.compile.compiler import compile_spec
from lab.compile.packed import open_packed
from lab.compile.spec_toml import load_spec
from lab.sign.pack import open_checked
from tests.lab.compile.tiny_models import random_frame
spec, folder = Path(sys.argv[1]), Path(sys.argv[2])
report = compile_spec(spec, folder / "model.fenced")
size, expected = load_spec(spec).inputs[0].buffer_bytes, []
with open_packed(folder / "model.fenced") as packed:
    for seed in range(6):
        expected.append(b"".join(packed.run([random_frame(size, seed).tobytes()])))
with open_checked(folder / "model.fenced") as (sealed, _, stated):
    for blob, span in zip(stated.blobs, sealed.layout.blobs, strict=True):
        (folder / blob.name).write_bytes(sealed.view(span))
(folder / "frames").write_bytes(b"".join(random_frame(size, seed).tobytes() for seed in range(6)))
(folder / "expected").write_bytes(b"".join(expected))
named = [stated.target.driver, stated.target.arch, dict(stated.compiler.options)]
print(json.dumps([named, [one.seen for one in report.checks if one.name.startswith(("eager", "captured"))]]))
"""
ENTRIES = """
import json, sys
from pathlib import Path
from abi.graph import decode
from lab.compile import bounds, capture
from lab.compile.compiler import compile_spec
from lab.sign.pack import open_checked
prove, proved = capture.require_in_bounds, {}
def counted(program):
    prove(program)
    proved[program.key.hex()] = len(list(bounds.accesses(program.src[1].src)))
capture.require_in_bounds = counted
bundle = Path(sys.argv[2]) / "turns.fenced"
report = compile_spec(Path(sys.argv[1]), bundle)
with open_checked(bundle) as (sealed, _, stated):
    at = [blob.name for blob in stated.blobs].index("graph")
    graph = decode(sealed.view(sealed.layout.blobs[at]))
checks = {one.name: one.seen for one in report.checks}
print(json.dumps([report.target, checks, [one.role.name for one in graph.entrypoints],
                  len(graph.programs), proved]))
"""
STATEFUL = """
import json, sys
from dataclasses import replace
from pathlib import Path
from abi.graph import *
from lab.bench import chain, dispatch
from lab.compile.capture import CapturedFunction
from lab.compile.spec import TargetSpec
from lab.compile.target_hcq import HcqTarget
import numpy as np
folder, count = Path(sys.argv[2]), chain.FRAME_BYTES
target = HcqTarget(TargetSpec("hcq", "gfx1100", "", 1))
with target.context():
    from tinygrad import Tensor, TinyJit, dtypes
    memory = Tensor.zeros(count).contiguous().realize()
    def function(frame):
        memory.assign(memory * 0.75 + frame.cast(dtypes.float32))
        return [(memory + 1).contiguous()]
    recorded = CapturedFunction(function, target.tinygrad_device)
    frames = [np.random.default_rng(seed).integers(0, 256, count, np.uint8).tobytes() for seed in range(6)]
    recorded.eager([frames[0]])
    recorded.record([frames[0]])
    capture = recorded.capture()
    code = target.code(capture)
    graph = dispatch._graph(replace(capture, launches=capture.launches[:1]), target, len(code))
    kinds = {one.index: index for index, one in enumerate(capture.buffers) if one.kind is BufferKind.FRAME}
    state = next(i for i, one in enumerate(capture.buffers) if one.kind is BufferKind.ARENA)
    number = {kinds[0]: 0, capture.output_buffers[0]: 1, state: 2}
    launches = tuple(
        Launch(one.kernel, tuple(Argument(number[span.buffer], span.offset, span.size_bytes) for span in one.arguments),
               *target.launch_size(capture.kernels[one.kernel])) for one in capture.launches)
    programs = tuple(Program(k.name, target.symbol(i), k.access, *target.code_range(i, len(code)), k.flops)
                     for i, k in enumerate(capture.kernels))
    buffers = (*graph.buffers[:2], Buffer(BufferKind.STATE, 4 * count, align_bytes=256))
    entry = replace(graph.entrypoints[0], launch_count=len(launches))
    graph = replace(graph, arena_bytes=0, buffers=buffers, launches=launches, programs=programs, entrypoints=(entry,),
                    states=(StateBuffer("memory", DType.FLOAT32, (count,), 2),))
    memory.assign(Tensor.zeros(count).contiguous()).realize()
    expected = [recorded.captured([frame])[0] for frame in frames]
(folder / "graph").write_bytes(encode(graph))
(folder / "code").write_bytes(code)
(folder / "weights").write_bytes(b"")
(folder / "frames").write_bytes(b"".join(frames))
(folder / "expected").write_bytes(b"".join(expected))
print(json.dumps([[one.access[0].name for one in capture.kernels], len(set(expected))]))
"""
REPLAY = """
import json, sys, time
from pathlib import Path
from abi.graph import decode
from hal.accelerator import Module, open_accelerator
from hal.fence import FenceStatus
folder = Path(sys.argv[1])
part = {name: memoryview((folder / name).read_bytes()) for name in ("graph", "code", "weights", "frames", "expected")}
accelerator = open_accelerator("hcq")
executable = accelerator.load(Module(decode(part["graph"]), part["code"], part["weights"]))
views = [one.view for one in executable.graph.outputs]
lanes = []
for index in range(3):
    bindings = executable.bindings(0)
    frame = accelerator.allocate("frame", executable.graph.buffers[executable.graph.frames[0].buffer].size_bytes)
    output = accelerator.allocate("output", bindings.output_bytes()[0])
    bindings.bind_frame(0, frame)
    bindings.bind_output(0, output)
    lanes.append((bindings, frame, output))
size, results, fences = lanes[0][1].size_bytes, [], []
def collect(run):
    assert fences[run].wait(time.monotonic_ns() + 60_000_000_000) is FenceStatus.SIGNALED, fences[run].error
    held = lanes[run % 3][2].view
    results.append(b"".join(bytes(held[one.offset : one.offset + one.size_bytes]) for one in views))
for run in range(6):
    bindings, frame, _ = lanes[run % 3]
    if run >= 3:
        collect(run - 3)
    frame.view[:] = part["frames"][run * size : (run + 1) * size]
    fences.append(accelerator.submit(executable, bindings))
for run in range(3, 6):
    collect(run)
accelerator.close()
print(json.dumps([b"".join(results) == part["expected"], len(set(results)), sorted(
    name for name in sys.modules if name.startswith(("tinygrad.runtime.ops_amd", "lab.sign", "onnx")))]))
"""


def retargeted(folder: Path, arch: str = "gfx1100") -> Path:
    folder.mkdir(exist_ok=True)
    spec = write_spec(folder)
    text = spec.read_text()
    for old, new in FOR_HCQ.items():
        assert old in text
        text = text.replace(old, new)
    spec.write_text(text.replace("gfx1100", arch))
    return spec


def compiled(code: str, folder: Path, spec: Path) -> Any:
    folder.mkdir()
    return hcq.run(code, str(spec), str(folder), vehicle=False)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a compiled tiny model, and what its compile said."""
    hcq.require_emulator()
    folder = tmp_path_factory.mktemp("hcq")
    return folder / "out", compiled(COMPILE, folder / "out", retargeted(folder / "spec"))


def test_a_compiled_model_is_replayed_from_data_alone_bit_for_bit(bundle: tuple[Path, Any]) -> None:
    folder, (named, seen) = bundle
    assert named == ["hcq", "gfx1100", {"compiler": "LLVM"}]
    assert len(seen) == 2
    assert all(one.startswith("bit for bit") for one in seen)
    assert hcq.run(REPLAY, str(folder)) == [True, 6, ["tinygrad.runtime.ops_amd"]]


def test_entrypoints_share_their_state_on_the_device_and_accesses_are_proved(tmp_path: Path) -> None:
    hcq.require_emulator()
    spec = write_entries(tmp_path, edits=FOR_HCQ)
    target, checks, roles, programs, proved = compiled(ENTRIES, tmp_path / "out", spec)
    assert target == "hcq AMD:0 gfx1100 emulated"
    assert "bit for bit over 20 steps" in checks["entrypoints in turn = eager"]
    assert sorted(roles) == ["LIGHTER", "PRIMARY", "STATE_ONLY"]
    assert len(proved) >= programs > 0
    assert min(proved.values()) >= 2  # each kernel reads something and writes something


def test_state_and_rotating_buffers_give_tinyjits_bytes_in_a_fresh_process(tmp_path: Path) -> None:
    hcq.require_emulator()
    access, different = compiled(STATEFUL, tmp_path / "out", tmp_path)
    assert "READ_WRITE" in access
    assert different == 6
    assert hcq.run(REPLAY, str(tmp_path / "out")) == [True, 6, ["tinygrad.runtime.ops_amd"]]


def test_two_compiles_in_two_processes_and_folders_write_the_same_bytes(
    bundle: tuple[Path, Any], tmp_path: Path
) -> None:
    compiled(COMPILE, tmp_path / "another-folder-of-other-length", retargeted(tmp_path / "spec"))
    other = tmp_path / "another-folder-of-other-length" / "model.fenced"
    assert other.read_bytes() == (bundle[0] / "model.fenced").read_bytes()


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    hcq.require_emulator()
    code = """
import json, sys
from pathlib import Path
from lab.compile.compiler import compile_spec
from lab.compile.refusal import CompileRefused
try:
    compile_spec(Path(sys.argv[1]), Path(sys.argv[2]) / "model.fenced")
except CompileRefused as refused:
    print(json.dumps([refused.code.name, str(refused)]))
"""
    code, text = compiled(code, tmp_path / "out", retargeted(tmp_path / "spec", "gfx1200"))
    assert code == "TARGET"
    assert "gfx1100" in text
    assert "gfx1200" in text


def test_a_machine_without_the_gpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hal.hcq_environment.NODES", {"AMD": (str(tmp_path / "kfd"), "KFD")})
    monkeypatch.setenv("DEV", "CPU")
    with pytest.raises(CompileRefused) as caught:
        compile_spec(retargeted(tmp_path), tmp_path / "model.fenced")
    assert caught.value.code is CompileRefusal.TARGET
    assert "none of them" in str(caught.value)


@pytest.mark.parametrize("arch", ["x86_64", "gfx11-generic", "sm_8", ""])
def test_an_architecture_that_no_gpu_has_is_refused(tmp_path: Path, arch: str) -> None:
    with pytest.raises(CompileRefused):
        load_spec(retargeted(tmp_path, arch))
