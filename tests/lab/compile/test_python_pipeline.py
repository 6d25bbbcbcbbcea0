"""Pipelines written in Python: aux inputs and state in the graph, recurrent runs, and what would be frozen refused."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from abi.graph import Access, BufferKind, DType, decode
from lab.compile import checks
from lab.compile.compiler import compile_spec
from lab.compile.packed import open_packed
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec_toml import load_spec
from lab.sign.pack import open_checked
from tests.lab.compile.python_pipelines import PIPELINE, SPEC, write_pipeline

SECOND_STATE = '[[output]]\ntensor = "oldest"'


def compiled(folder: Path, text: str = PIPELINE, edits: dict[str, str] | None = None) -> Path:
    bundle = folder / "rolling.fenced"
    compile_spec(write_pipeline(folder, text, edits), bundle)
    return bundle


def refusal(folder: Path, text: str, edits: dict[str, str] | None = None) -> CompileRefused:
    with pytest.raises(CompileRefused) as refused:
        compiled(folder, text, edits)
    assert not (folder / "rolling.fenced").exists()
    return refused.value


@pytest.fixture(scope="module")
def rolling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("rolling"))


def test_a_rolling_buffer_is_numpys_over_twenty_steps(rolling: Path) -> None:  # cases/runtime.md rows 1, 2
    spec = load_spec(rolling.with_name("spec.toml"))
    assert spec.check.steps == 20
    queue: NDArray[np.int32] = np.zeros((5, 96), np.int32)
    results = []
    with open_packed(rolling) as packed:
        for values in checks.every_step(spec):
            frame, gain = np.frombuffer(values[0], np.uint8), np.frombuffer(values[1], np.int32)
            queue = np.concatenate([queue[1:], (frame.astype(np.int32) * gain)[None]])
            oldest, sums = packed.run(values)
            assert oldest == queue[0].tobytes()
            assert sums == queue.sum(axis=1, dtype=np.int32).tobytes()
            assert packed.states() == [queue.tobytes()]
            results.append(sums)
    assert len(set(results)) == 20


def test_the_graph_states_aux_inputs_and_state(rolling: Path) -> None:
    with open_checked(rolling) as (sealed, _, stated):
        spans = {blob.name: span for blob, span in zip(stated.blobs, sealed.layout.blobs, strict=True)}
        graph = decode(sealed.view(spans["graph"]))
    (aux,), (state,) = graph.aux, graph.states
    assert (aux.name, aux.dtype, aux.shape, aux.max_age_ns) == ("gain", DType.INT32, (1,), 250_000_000)
    assert (aux.has_default, aux.default_value) == (True, np.int32(3).tobytes())
    assert (state.name, state.dtype, state.shape, state.hand_over) == ("queue", DType.INT32, (5, 96), True)
    assert graph.buffers[aux.buffer].kind is BufferKind.AUX
    assert graph.buffers[state.buffer].kind is BufferKind.STATE
    assert graph.entrypoints[0].aux == (0,)
    access = {
        way
        for launch in graph.launches
        for argument, way in zip(launch.arguments, graph.programs[launch.program].argument_access, strict=True)
        if argument.buffer == state.buffer
    }
    assert access == {Access.READ, Access.WRITE}


def test_two_compiles_give_the_same_bytes(rolling: Path, tmp_path: Path) -> None:
    assert compiled(tmp_path).read_bytes() == rolling.read_bytes()


def test_states_that_are_exchanged_are_not_overwritten(tmp_path: Path) -> None:
    text = PIPELINE.replace("gain, queue", "gain, queue, other")
    text = text.replace("queue[1:]", "other[1:]").replace('"queue": rolled', '"queue": rolled, "other": queue')
    second = '[[state]]\nname = "other"\ndtype = "int32"\nshape = [5, 96]\nhand_over = false\n\n' + SECOND_STATE
    bundle = compiled(tmp_path, text, {SECOND_STATE: second})
    spec = load_spec(bundle.with_name("spec.toml"))
    queue, other = np.zeros((5, 96), np.int32), np.zeros((5, 96), np.int32)
    with open_packed(bundle) as packed:
        for values in checks.every_step(spec):
            frame, gain = np.frombuffer(values[0], np.uint8), np.frombuffer(values[1], np.int32)
            queue, other = np.concatenate([other[1:], (frame.astype(np.int32) * gain)[None]]), queue
            packed.run(values)
            assert packed.states() == [queue.tobytes(), other.tobytes()]


@pytest.mark.parametrize(
    ("old", "new", "code", "what"),
    [
        ("* gain", "", CompileRefusal.INPUT_WITHOUT_EFFECT, "input 'gain'"),
        ("(road.cast", "((road * 0 + 1).cast", CompileRefusal.INPUT_WITHOUT_EFFECT, "input 'road'"),
        ("return {", "rolled = queue * 0 + road.cast('int32') * gain; return {", CompileRefusal.INPUT_WITHOUT_EFFECT,
         "state 'queue'"),
        ("road, gain, queue", "road, gain, queue, scale=2.0", CompileRefusal.PIPELINE, "parameter 'scale'"),
        ("road, gain, queue", "gain, queue, *road", CompileRefusal.PIPELINE, "parameter 'road'"),
        ("road, gain, queue", "road: list, gain, queue", CompileRefusal.PIPELINE, "parameter 'road'"),
        ("road, gain, queue", "road: 'Sequence[Tensor]', gain, queue", CompileRefusal.PIPELINE, "parameter 'road'"),
        ("road, gain, queue", "road: tuple[int, ...] | None, gain, queue", CompileRefusal.PIPELINE, "parameter 'road'"),
        ("road, gain, queue", "gain, queue, **frames", CompileRefusal.PIPELINE, "parameter 'frames'"),
        ("road, gain, queue", "road, gain, queue, wide", CompileRefusal.INPUT_MISMATCH, "parameter 'wide'"),
        ("road, gain, queue", "road, queue, gain=None", CompileRefusal.PIPELINE, "parameter 'gain'"),
        ("road, gain, queue", "road, queue", CompileRefusal.INPUT_MISMATCH, "'gain' of the spec"),
        ('"sums": rolled.sum(axis=1)', '"sums": [rolled]', CompileRefusal.PIPELINE, "the result"),
        ('{"queue": rolled}', '{"queue": rolled.cast("float32")}', CompileRefusal.PIPELINE, "state 'queue'"),
        ('{"queue": rolled}', "{}", CompileRefusal.PIPELINE, "the states"),
        ('"sums"', '"totals"', CompileRefusal.OUTPUT_MISMATCH, "output tensor 'sums'"),
        ("return step", "return 3", CompileRefusal.PIPELINE, "the result of build"),
        ("def build", "def other", CompileRefusal.PIPELINE, "building it"),
        ("rolled =", "road.nothing; rolled =", CompileRefusal.PIPELINE, "the call"),
    ],
)  # fmt: skip
def test_what_would_be_frozen_or_lost_is_refused(
    tmp_path: Path, old: str, new: str, code: CompileRefusal, what: str
) -> None:  # cases/runtime.md rows 3, 4
    assert PIPELINE.count(old) >= 1
    refused = refusal(tmp_path, PIPELINE.replace(old, new, 1))
    assert (refused.code, what in refused.what) == (code, True), refused


@pytest.mark.parametrize(
    "text",
    [
        PIPELINE.replace("def build():", "def build():\n    calls = []").replace(
            "rolled = ", "calls.append(1)\n        gain = gain + len(calls)\n        rolled = "
        ),
        PIPELINE.replace("* gain", "* int(gain.item())"),
        PIPELINE.replace("def build():", "def build():\n    last = []").replace(
            "rolled = ", "before = last.pop() if last else road\n        last.append(road)\n"
            "        gain = gain + before.cast('int32').sum()\n        rolled = "
        ),
        PIPELINE.replace("def build():", "def build():\n    from tinygrad import Tensor\n    hidden = Tensor.ones(1, "
                         "dtype='int32').contiguous().realize()").replace(
            "rolled = ", "gain = gain + hidden.assign(hidden + gain).realize()\n        rolled = "
        ),
        PIPELINE.replace("def build():", "def build():\n    import random").replace(
            "rolled = ", "gain = gain + random.randint(0, 99)\n        rolled = "
        ),
    ],
    ids=["a Python count", "a value read out", "a tensor kept from the call before", "a state that nobody declared",
         "a number drawn"],
)  # fmt: skip
def test_a_value_frozen_at_capture_is_found(tmp_path: Path, text: str) -> None:  # cases/runtime.md rows 3, 5
    assert refusal(tmp_path, text).code in (CompileRefusal.CAPTURE_DIFFERS, CompileRefusal.PIPELINE)


@pytest.mark.parametrize(
    ("kept", "read", "what"),
    [
        ("import time", "time.localtime().tm_year // 9999", "the call"),
        ("import random", "(random.random() < 1e-9)", "the call"),
        ("calls = []", "(calls.append(1), len(calls) > 1000)[1]", "'calls'"),
    ],
)
def test_a_value_frozen_at_capture_that_no_run_shows_is_found(
    tmp_path: Path, kept: str, read: str, what: str
) -> None:  # cases/runtime.md row 3
    text = PIPELINE.replace("def build():", f"def build():\n    {kept}")
    refused = refusal(tmp_path, text.replace("rolled = ", f"gain = gain + {read}\n        rolled = "))
    assert (refused.code, what in refused.what) == (CompileRefusal.PIPELINE, True), refused


NEVER_A_NUMBER = '(rolled[0].cast("float32") ** 2 * -1 - 1).sqrt()'
NONE_AT_FIRST = '(rolled[0].cast("float32") ** 2).sum().reshape(1).log()'  # the queue begins with zeros


def with_oldest(value: str, policy: str) -> tuple[str, dict[str, str]]:
    """The pipeline and its edited spec where `value` is its first output."""
    named = 'name = "oldest"\nunit = "1"\nnan = '
    return PIPELINE.replace('"oldest": rolled[0]', f'"oldest": {value}'), {f'{named}"refuse"': f'{named}"{policy}"'}


def test_an_output_that_is_never_a_number_is_refused_where_its_contract_refuses_it(tmp_path: Path) -> None:
    refused = refusal(tmp_path, *with_oldest(NEVER_A_NUMBER, "refuse"))
    assert (refused.code, refused.what) == (CompileRefusal.NOT_FINITE, "output 'oldest'"), refused
    assert refused.found == "NaN or infinity in each of 20 steps"


@pytest.mark.parametrize(
    ("value", "policy", "words"),
    [
        (NEVER_A_NUMBER, "flag", "oldest not in 20 of 20 steps, whose results would be flagged"),
        (NONE_AT_FIRST, "refuse", "oldest not in 4 of 20 steps, whose results would be discarded"),
        ("rolled[0]", "refuse", "all, over 20 steps"),
    ],
)
def test_outputs_that_are_no_numbers_are_told_of(tmp_path: Path, value: str, policy: str, words: str) -> None:
    text, edits = with_oldest(value, policy)
    report = compile_spec(write_pipeline(tmp_path, text, edits), tmp_path / "rolling.fenced")
    assert [one.seen for one in report.checks if one.name == "outputs are numbers"] == [words]


def test_a_list_made_of_inputs_keeps_each_an_input(tmp_path: Path) -> None:  # cases/runtime.md row 4
    parts = """parts = [road[:48], road[48:]]
        road = parts[0].cat(parts[1])
        for one in (gain, gain):
            road = road + one
        rolled = """
    text = PIPELINE.replace("rolled = ", parts)
    bundle = compiled(tmp_path, text)
    frame, gain = np.arange(96, dtype=np.uint8), np.array([5], np.int32)
    with open_packed(bundle) as packed:
        packed.run([frame.tobytes(), gain.tobytes()])
        (queue,) = packed.states()
    assert np.array_equal(np.frombuffer(queue, np.int32)[-96:], (frame.astype(np.int32) + 10) * 5)


@pytest.mark.parametrize(
    ("edits", "key"),
    [
        ({"default = 3": "default = 3.5"}, "default"),
        ({"default = 3": "default = [1, 2]"}, "default"),
        ({'dtype = "int32"\nshape = [1]': 'dtype = "complex64"\nshape = [1]'}, "dtype"),
        ({"shape = [1]": "shape = [1048576]"}, "shape"),
        ({"max_age_ms = 250.0\n": ""}, "max_age_ms"),
        ({"hand_over = true": "hand_over = 1"}, "hand_over"),
        ({'name = "gain"': 'name = "road"'}, "name"),
        ({'layout = "bytes"': 'layout = "bytes"\nresize = [8, 4]'}, "resize"),
        ({'source = "pipeline.py:build"': 'source = "tiny.onnx"'}, "layout"),
        ({"[[output]]": "[check]\nsteps = 19\n\n[[output]]"}, "steps"),
    ],
)
def test_a_spec_that_says_too_little_or_too_much_is_refused_by_key(
    tmp_path: Path, edits: dict[str, str], key: str
) -> None:
    with pytest.raises(CompileRefused) as refused:
        load_spec(write_pipeline(tmp_path, PIPELINE, edits))
    assert key in refused.value.what


def test_an_aux_input_without_default_refuses_the_run_instead(tmp_path: Path) -> None:
    assert "default = 3\n" in SPEC
    assert load_spec(write_pipeline(tmp_path, PIPELINE, {"default = 3\n": ""})).aux[0].default is None
