"""No compiled kernel reads or writes outside its buffers: what tinygrad can get wrong there is refused by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.compile import bounds, program_cache
from lab.compile.bounds import accesses, require_in_bounds
from lab.compile.compiler import compile_spec
from lab.compile.refusal import CompileRefusal, CompileRefused
from lab.compile.spec_toml import load_spec
from lab.compile.toolchain import compile_context
from tests.lab.compile.python_pipelines import write_pipeline
from tests.support import opencl

# a gather by indices that are computed from tables, padded, as a warp with a border is
WARP = """
import numpy as np
from tinygrad import Tensor


def build():
    columns = Tensor(np.linspace(0, 9, 16, dtype=np.float32)[None]).realize()
    rows = Tensor(np.linspace(0, 3, 4, dtype=np.float32)[:, None]).realize()

    def step(road, gain, queue):
        near = gain.cast("float32")
        x = (columns * near).maximum(0).minimum(23).cast("int32")
        y = (rows * near).maximum(0).minimum(3).cast("int32")
        bordered = road[y * 24 + x].pad(((1, 1), (2, 2)))
        rolled = queue[1:].cat((road.cast("int32") * gain).reshape(1, 96), dim=0)
        return {"oldest": rolled[0], "sums": bordered}, {"queue": rolled}

    return step
"""


def test_a_gather_fused_with_its_padding_is_refused_by_kernel(tmp_path: Path) -> None:
    with pytest.raises(CompileRefused) as refused:
        compile_spec(write_pipeline(tmp_path, WARP), tmp_path / "warp.fenced")
    assert refused.value.code is CompileRefusal.OUT_OF_BOUNDS
    assert refused.value.what.startswith("kernel E_")
    assert "read of argument" in refused.value.expected
    assert "outside for " in refused.value.found
    assert ".contiguous()" in refused.value.todo
    assert not (tmp_path / "warp.fenced").exists()


def test_the_same_gather_written_before_it_is_padded_compiles(tmp_path: Path) -> None:
    compile_spec(write_pipeline(tmp_path, WARP.replace(".pad(", ".contiguous().pad(")), tmp_path / "warp.fenced")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is compiled from now on, in whole; all is compiled anew, and nothing is proved."""
    found: list[Any] = []
    with compile_context("x86_64", "x86_64_v3", 2):
        from tinygrad import codegen  # noqa: PLC0415 (after the compiler's environment is set)
        from tinygrad.engine import realize  # noqa: PLC0415

        empty = program_cache.ProgramCache(tmp_path / "programs", "test")
        monkeypatch.setattr(codegen, "to_program_cache", empty)
        monkeypatch.setattr(realize, "to_program_cache", empty)
        monkeypatch.setattr(program_cache, "require_in_bounds", found.append)
        yield found


def table(count: int, seed: int = 1) -> Any:
    from tinygrad import Tensor  # noqa: PLC0415 (after the compiler's environment is set)

    return Tensor(np.random.default_rng(seed).integers(-9, 200, count).astype(np.int32)).realize()


GOOD: dict[str, Callable[[], Any]] = {
    "a shift with zeros": lambda: table(101).pad(((3, 2),)) + 1,
    "a gather by any numbers": lambda: table(103)[table(31, 2)] + 2,
    "a strided window": lambda: table(107).reshape(1, 1, 107).pad(((0, 0), (0, 0), (1, 2)))[:, :, ::5] + 3,
    "a convolution with a border": lambda: (
        table(3 * 15 * 17).reshape(1, 3, 15, 17).float().conv2d(table(45, 2).reshape(5, 3, 3).float().unsqueeze(0)
                                                              .reshape(5, 3, 3, 1).expand(5, 3, 3, 3), padding=1)
    ),
    "two halves by one index": lambda: table(109)[5:60].cat(table(113, 3)[:40]) + 5,
    "a pooled picture": lambda: table(13 * 19).reshape(1, 1, 13, 19).max_pool2d((3, 3), stride=2, padding=1) + 6,
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_what_stays_inside_is_proved(programs: list[Any], case: str) -> None:
    GOOD[case]().contiguous().realize()
    assert programs
    for program in programs:
        require_in_bounds(program)


def test_a_gate_that_is_taken_away_or_too_wide_is_noticed(programs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    GOOD["a shift with zeros"]().contiguous().realize()
    program = programs[-1]
    gated = [one for one in accesses(program.src[1].src) if one.gates]
    assert gated
    for spoil in (
        lambda one: replace(one, gates=()),
        lambda one: replace(one, elements=one.elements - 1),
        lambda one: replace(one, width=one.width + 1),
        lambda one: replace(one, index=one.index - 1),
    ):
        monkeypatch.setattr(bounds, "accesses", lambda uops, spoil=spoil: map(spoil, gated))
        with pytest.raises(CompileRefused, match="out-of-bounds"):
            require_in_bounds(program)


def test_a_write_under_a_condition_is_proved_with_it(programs: list[Any]) -> None:
    from tinygrad.uop.ops import Ops, UOp  # noqa: PLC0415

    GOOD["a shift with zeros"]().contiguous().realize()
    uops = list(programs[-1].src[1].src)
    store = next(one for one in uops if one.op is Ops.STORE)
    condition = UOp(Ops.IF, src=(UOp.const(True), store.src[0]))
    inside = list(accesses([condition, store, UOp(Ops.ENDIF, src=(condition,)), store]))
    assert [len(one.gates) for one in inside] == [1, 0]
    assert {one.verb for one in inside} == {"write"}


def test_a_value_that_the_prover_has_no_form_for_may_be_anything(programs: list[Any]) -> None:
    held = table(64)
    (held[table(31, 2) ^ table(31, 3)] + 7).contiguous().realize()  # z3 has no exclusive or of integers
    for program in programs:
        require_in_bounds(program)


def test_a_vector_takes_more_than_its_first_element(tmp_path: Path) -> None:
    opencl.require_device()
    from lab.compile.target import open_target  # noqa: PLC0415

    edits = {'driver = "cpu"': 'driver = "opencl"', 'cpu = "x86_64_v3"\n': "", "threads = 2\n": ""}
    with open_target(load_spec(write_pipeline(tmp_path, edits=edits))).context():
        from tinygrad import Tensor, TinyJit  # noqa: PLC0415 (after the compiler's environment is set)

        double = TinyJit(lambda given: (given * 2).contiguous().realize())
        for _ in range(2):
            double(Tensor(np.arange(64, dtype=np.float32)).to(None).contiguous().realize())
        programs = [call.src[0] for call in double.captured.linear.src]
    found = [one for program in programs for one in accesses(program.src[1].src)]
    assert {one.width for one in found} & {2, 4}
    for program in programs:
        require_in_bounds(program)
