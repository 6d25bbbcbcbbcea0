"""Several entrypoints in one bundle: what they share is there once, each is checked alone, and all in turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from abi.graph import BufferKind, EntryRole, Graph, MissPolicy, decode
from daemon.refusal import ModelRefused
from daemon.selftest import self_test
from hal.accelerator import Module, open_accelerator
from lab.compile import checks, interleave
from lab.compile.compiler import compile_spec
from lab.compile.packed import PackedModel, open_packed
from lab.compile.page import compile_page
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.report import CompileReport
from lab.compile.spec_toml import load_spec
from lab.sign.pack import open_checked
from tests.lab.compile.python_pipelines import ENTRIES_PIPELINE, write_entries
from tests.lab.compile.tiny_models import random_frame, tiny_model, weights, write_spec

FULL, KEEP, BRIEF = range(3)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> CompileReport:
    folder = tmp_path_factory.mktemp("turns")
    return compile_spec(write_entries(folder), folder / "turns.fenced")


def parts_of(bundle: Path) -> dict[str, bytes]:
    with open_checked(bundle) as (sealed, _, stated):
        return {one.name: bytes(sealed.view(span)) for one, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}


def graph_of(bundle: Path) -> Graph:
    return decode(parts_of(bundle)["graph"])


def test_the_graph_states_every_entrypoints_part(report: CompileReport) -> None:
    full, keep, brief = graph_of(report.path).entrypoints
    assert (full.name, full.role, full.frames, full.aux, full.outputs) == (
        "full",
        EntryRole.PRIMARY,
        (0,),
        (0,),
        (0, 1),
    )
    assert (keep.name, keep.role, keep.frames, keep.aux, keep.outputs) == ("keep", EntryRole.STATE_ONLY, (0,), (0,), ())
    assert (brief.name, brief.role, brief.frames, brief.aux) == ("brief", EntryRole.LIGHTER, (0,), ())
    assert brief.outputs == full.outputs
    assert [(one.deadline_ns, one.budget_ns) for one in (full, keep, brief)] == [
        (60_000_000, 400_000_000), (0, 400_000_000), (80_000_000, 200_000_000),
    ]  # fmt: skip
    assert (full.miss_limit, full.miss_window, full.on_misses) == (3, 20, MissPolicy.LIGHTER)
    assert (brief.miss_limit, brief.miss_window, brief.on_misses) == (0, 0, MissPolicy.NONE)
    launches = [(one.first_launch, one.first_launch + one.launch_count) for one in (full, keep, brief)]
    assert launches[0][0] == 0
    assert [end for _, end in launches[:2]] == [start for start, _ in launches[1:]]


def test_what_entrypoints_share_is_there_once(report: CompileReport) -> None:
    parts = parts_of(report.path)
    graph = decode(parts["graph"])
    table = np.random.default_rng(5).integers(1, 99, (5, 96)).astype(np.int32).tobytes()
    assert parts["weights"].count(table) == 1
    assert len([one for one in graph.buffers if one.kind is BufferKind.STATE]) == 2
    assert len([one for one in graph.buffers if one.kind is BufferKind.FRAME]) == 1
    ends = []
    for entry in graph.entrypoints:
        launches = graph.launches[entry.first_launch : entry.first_launch + entry.launch_count]
        used = {one.buffer for launch in launches for one in launch.arguments}
        arena = [graph.buffers[one] for one in used if graph.buffers[one].kind is BufferKind.ARENA]
        ends.append(max(one.offset + one.size_bytes for one in arena))
    assert graph.arena_bytes - max(ends) < 256  # the largest one's, not the sum
    assert len({(one.name, one.flops) for one in graph.programs}) < len(graph.launches)


def test_entrypoints_in_any_turn_are_numpys(report: CompileReport) -> None:
    spec = load_spec(report.path.with_name("spec.toml"))
    table = np.random.default_rng(5).integers(1, 99, (5, 96)).astype(np.int32)
    queue, runs = np.zeros((5, 96), np.int32), np.zeros(1, np.int32)
    turns = [FULL, KEEP, KEEP, FULL, BRIEF, KEEP, BRIEF, FULL, FULL, BRIEF, *interleave.order(3, 20)]
    with open_packed(report.path) as packed:
        for step, turn in enumerate(turns):
            frame, gain = checks.step_inputs(spec, step)
            factor = np.int32(3) if turn == BRIEF else np.frombuffer(gain, np.int32)[0]
            pixels = np.frombuffer(frame, np.uint8).astype(np.int32)
            queue = np.concatenate([queue[1:], (pixels * factor)[None]])
            found = packed.run([frame] if turn == BRIEF else [frame, gain], turn)
            if turn == KEEP:
                assert found == []
            elif turn == FULL:
                sums = (queue * table).sum(axis=1, dtype=np.int32) + runs
                assert found == [(queue[0] + runs).tobytes(), sums.tobytes()]
                runs = runs + 1
            else:
                sums = np.repeat((queue[4] * table[4]).sum(dtype=np.int32), 5)
                assert found == [queue[0].tobytes(), sums.tobytes()]
            assert packed.states() == [queue.tobytes(), runs.tobytes()]


def test_every_entrypoint_is_checked_alone_and_all_in_turn(report: CompileReport) -> None:
    names = [one.name for one in report.checks]
    for entry in ("full", "keep", "brief"):
        for check in ("eager = captured", "every input matters", "captured = packed and run by the HAL"):
            assert f"{entry}: {check}" in names
    assert names[-1] == "entrypoints in turn = eager"
    assert "over 20 steps" in report.checks[-1].seen


def test_a_state_that_the_bundle_leaves_otherwise_is_found_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resets, real = [], PackedModel.reset_state

    def forgetful(packed: PackedModel) -> None:
        resets.append(packed)
        if len(resets) <= 3:  # before each entrypoint alone, but not before all in turn
            real(packed)

    monkeypatch.setattr(PackedModel, "reset_state", forgetful)
    with pytest.raises(CompileRefused) as refused:
        compile_spec(write_entries(tmp_path), tmp_path / "turns.fenced")
    assert refused.value.code is CompileRefusal.CAPTURE_DIFFERS
    assert "of all entrypoints in turn" in refused.value.what
    assert not (tmp_path / "turns.fenced").exists()


def test_two_compiles_give_the_same_bytes(report: CompileReport, tmp_path: Path) -> None:
    again = compile_spec(write_entries(tmp_path), tmp_path / "turns.fenced")
    assert again.path.read_bytes() == report.path.read_bytes()


def run_self_test(bundle: Path, goldens: bytes) -> int:
    """Self-tests the bundle on the vehicle's driver with this goldens blob; how many vectors it ran."""
    parts = parts_of(bundle)
    module = Module(decode(parts["graph"]), memoryview(parts["code"]), memoryview(parts["weights"]))
    accelerator = open_accelerator("cpu")
    try:
        return self_test(accelerator, accelerator.load(module), memoryview(goldens)).vectors
    finally:
        accelerator.close()


def test_every_entrypoint_has_golden_vectors_that_the_vehicle_runs(report: CompileReport) -> None:
    graph = graph_of(report.path)
    assert [one.entrypoint for one in graph.goldens] == [FULL, FULL, KEEP, KEEP, BRIEF, BRIEF]
    assert graph.goldens[2].output_bytes == 5 * 96 * 4  # the queue that it writes; `runs` is none of its
    assert run_self_test(report.path, parts_of(report.path)["goldens"]) == 6


def test_an_entrypoint_without_outputs_is_held_to_the_state_it_leaves(report: CompileReport) -> None:
    parts = parts_of(report.path)
    at = decode(parts["graph"]).goldens[3].output_offset + 100
    blob = parts["goldens"]
    with pytest.raises(ModelRefused) as refused:
        run_self_test(report.path, blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :])
    assert refused.value.code == "self-test-golden"
    assert "state queue after entrypoint keep" in refused.value.what
    assert "the first at byte 100" in refused.value.found


def test_the_bundle_is_no_larger_than_weights_code_and_64_kb_and_holds_no_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = bytes(range(1, 64))
    real = checks.step_frames

    def marked(*args: Any, **kwargs: Any) -> list[bytes]:
        return [marker + frame[len(marker) :] for frame in real(*args, **kwargs)]

    monkeypatch.setattr(checks, "step_frames", marked)
    spec_path = write_entries(tmp_path)
    bundle = compile_spec(spec_path, tmp_path / "turns.fenced").path
    data, parts, spec = bundle.read_bytes(), parts_of(bundle), load_spec(spec_path)
    assert len(data) <= len(parts["weights"]) + len(parts["code"]) + 64 * 1024
    assert marker not in data
    with open_packed(bundle) as packed:
        for values in checks.every_step(spec):
            _, sums = packed.run(values)
            newest = packed.states()[0][-384:]  # the rows before it are zeros at first
            assert sums not in data
            assert newest not in data


def test_the_page_shows_every_entrypoint(report: CompileReport) -> None:
    page = compile_page(report)
    for text in ("state only", "more than 3 of 20 runs: lighter", "60 ms", "80 ms", "entrypoints in turn = eager"):
        assert text in page
    assert "keep (state only): 2 launches" in report.to_text()
    assert (
        len(report.details.launch_spans_ns) == len(report.launches) == sum(one.launch_count for one in report.entries)
    )
    for entry in report.entries:
        assert report.details.launch_spans_ns[entry.launches][0][0] == 0


@pytest.mark.parametrize(
    ("edits", "key"),
    [
        ({'role = "primary"': 'role = "lighter"'}, "entrypoint[0].role"),
        ({'role = "lighter"': 'role = "stateOnly"'}, "entrypoint[2].role"),
        ({'role = "lighter"': 'role = "primary"'}, "entrypoint[2].role"),
        ({'role = "stateOnly"': 'role = "unscheduled"'}, "entrypoint[1].role"),
        ({'name = "keep"': 'name = "full"'}, "entrypoint[1].name"),
        ({'source = "pipeline.py:keep"': 'source = "keep.onnx"'}, "entrypoint[1].source"),
        ({'role = "stateOnly"': 'role = "stateOnly"\ndeadline_ms = 5'}, "entrypoint[1].deadline_ms"),
        ({'role = "stateOnly"': 'role = "stateOnly"\nmiss_window = 5'}, "entrypoint[1].miss_window"),
        ({"miss_limit = 3": "miss_limit = 20"}, "entrypoint[0].miss_limit"),
        ({"miss_window = 20": "miss_window = 65537"}, "entrypoint[0].miss_window"),
        ({"miss_window = 20\n": ""}, "entrypoint[0].miss_limit"),
        ({'on_misses = "lighter"': 'on_misses = "wait"'}, "entrypoint[0].on_misses"),
        ({"deadline_ms = 60": "deadline_ms = 0"}, "entrypoint[0].deadline_ms"),
        ({'role = "lighter"\n': 'role = "lighter"\nmiss_limit = 1\nmiss_window = 2\non_misses = "lighter"\n'},
         "entrypoint[2].on_misses"),
        ({'[[entrypoint]]\nname = "brief"\nrole = "lighter"\nsource = "pipeline.py:brief"\ndeadline_ms = 80\n'
          "budget_ms = 200\n": ""}, "entrypoint[0].on_misses"),
    ],
)  # fmt: skip
def test_a_table_that_says_too_little_or_too_much_is_refused_by_key(
    tmp_path: Path, edits: dict[str, str], key: str
) -> None:
    with pytest.raises(CompileRefused) as refused:
        load_spec(write_entries(tmp_path, edits=edits))
    assert refused.value.what == f"spec.toml: {key}"


@pytest.mark.parametrize(
    ("old", "new", "code", "what"),
    [
        ("road, gain, queue, runs", "road, queue, runs, gain=2", CompileRefusal.PIPELINE, "parameter 'gain'"),
        ("full(road, gain, queue", "full(road, queue", CompileRefusal.INPUT_MISMATCH, "'gain' of the spec"),
        ("light(road, queue)", "light(queue)", CompileRefusal.INPUT_MISMATCH, "'road' of the spec"),
        ("roll(road, gain, queue)", "roll(road, gain)", CompileRefusal.PIPELINE, "its parameters"),
        ('return {"queue": queue[1:]', 'return {"oldest": queue[0]}, {"queue": queue[1:]', CompileRefusal.PIPELINE,
         "the result"),
        (".expand(5)", ".expand(6)", CompileRefusal.OUTPUT_MISMATCH, "output 'sums' of entrypoint 'brief'"),
        (".expand(5)", '.expand(5).cast("int16")', CompileRefusal.OUTPUT_MISMATCH,
         "output 'sums' of entrypoint 'brief'"),
        ("gain, queue, runs):", "gain, queue):\n        runs = road[0]", CompileRefusal.PIPELINE, "the states"),
        ("(road.cast(\"int32\") * gain).reshape(1, 96), dim=0)}", "(road.cast(\"int32\") * 2).reshape(1, 96), dim=0)}",
         CompileRefusal.INPUT_WITHOUT_EFFECT, "input 'gain'"),
        ("def keep():", "def kept():", CompileRefusal.PIPELINE, "pipeline.py:keep, building it"),
    ],
)  # fmt: skip
def test_an_entrypoint_that_does_not_fit_its_role_is_refused(
    tmp_path: Path, old: str, new: str, code: CompileRefusal, what: str
) -> None:
    assert ENTRIES_PIPELINE.count(old) >= 1
    with pytest.raises(CompileRefused) as refused:
        compile_spec(write_entries(tmp_path, ENTRIES_PIPELINE.replace(old, new, 1)), tmp_path / "turns.fenced")
    assert (refused.value.code, what in refused.value.what) == (code, True), refused.value
    assert not (tmp_path / "turns.fenced").exists()


def test_a_state_that_no_entrypoint_takes_is_refused(tmp_path: Path) -> None:
    text = ENTRIES_PIPELINE.replace("gain, queue, runs):", "gain, queue):\n        runs = queue[0, 0]")
    text = text.replace('{"queue": rolled, "runs": runs + 1}', '{"queue": rolled}')
    with pytest.raises(CompileRefused) as refused:
        compile_spec(write_entries(tmp_path, text), tmp_path / "turns.fenced")
    assert (refused.value.code, refused.value.what) == (CompileRefusal.INPUT_MISMATCH, "state 'runs'")


def test_two_onnx_models_of_one_form_share_what_is_the_same(tmp_path: Path) -> None:
    """The lighter one has no convolution; the preprocessing in front of both is there once."""
    spec_path = write_spec(tmp_path)
    nodes = [helper.make_node("Flatten", ["image"], ["f"]), helper.make_node("Gemm", ["f", "v"], ["result"])]
    onnx.save(tiny_model(nodes, [weights("v", 576, 6, seed=4)]), str(tmp_path / "small.onnx"))
    entries = '[[entrypoint]]\nname = "whole"\nrole = "primary"\n\n[[entrypoint]]\nname = "small"\nrole = "lighter"\n'
    text = spec_path.read_text().replace("[[input]]", f'{entries}source = "small.onnx"\n\n[[input]]')
    spec_path.write_text(text)
    report = compile_spec(spec_path, tmp_path / "tiny.fenced")
    names = [one.name for one in report.checks]
    assert {"whole: onnxruntime", "small: onnxruntime", "entrypoints in turn = eager"} <= set(names)
    assert len(report.details.accuracy) == 2
    whole, small = report.entries
    assert report.kernels < whole.launch_count + small.launch_count
    provenance = json.loads(parts_of(report.path)["provenance.json"])
    materials = provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [one["name"] for one in materials[:5]] == [
        "spec.toml", "tiny.onnx", "small.onnx", "whole: model as checked, sizes fixed",
        "small: model as checked, sizes fixed",
    ]  # fmt: skip
    frame = random_frame(load_spec(spec_path).inputs[0].buffer_bytes, 3).tobytes()
    with open_packed(report.path) as packed:
        assert packed.run([frame]) != packed.run([frame], 1)
