"""softmax(x) @ v in pieces of rows: against onnxruntime, and that no launch holds all scores."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from lab.compile.toolchain import compile_context
from tests.lab.compile.test_compile_network import TOLERANCE, both, integers, node, rewritten
from tests.lab.compile.tiny_models import tiny_model, weights

ROWS, HEADS = 192, 2
SCORES = HEADS * ROWS * ROWS


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with compile_context("x86_64", "x86_64_v3", 2):
        yield


def attention(*between: Any, axis: int = 3) -> list[Any]:
    """Attention of two heads over the picture's 192 pixels; `between` makes "x" of the scores "s"."""
    return [
        node("Conv", ["image", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Reshape", ["c", "heads"], ["k"]), node("Transpose", ["k"], ["q"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "k"], ["s"]), *between, node("Softmax", ["x"], ["p"], axis=axis),
        node("MatMul", ["p", "q"], ["a"]), node("Transpose", ["a"], ["t"], perm=[0, 1, 3, 2]),
        node("Reshape", ["t", "picture"], ["m"]), node("Add", ["c", "m"], ["result"]),
    ]  # fmt: skip


PARTS = [weights("w", 8, 3, 3, 3), integers("heads", 1, HEADS, 4, ROWS), integers("picture", 1, 8, 12, 16)]
SCALE = numpy_helper.from_array(np.array(0.5, np.float32), "scale")
SCALED = node("Mul", ["s", "scale"], ["x"])
CASES: dict[str, tuple[list[Any], list[Any]]] = {
    "scaled": (attention(SCALED), [SCALE]),
    "with a bias for each row and column, and for each column": (
        attention(node("Add", ["s", "both"], ["u"]), node("Add", ["columns", "u"], ["x"])),
        [weights("both", ROWS, ROWS), weights("columns", 1, ROWS)],
    ),
    "with a bias that is computed": (
        attention(node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), node("Sigmoid", ["kt"], ["g"]),
                  node("MatMul", ["g", "flat"], ["bias"]), node("Add", ["s", "bias"], ["x"])),
        [weights("flat", 4, 1)],
    ),
    "along another axis": (attention(SCALED, axis=2), [SCALE]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attention_in_pieces_is_what_onnxruntime_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from lab.compile import attention as room  # noqa: PLC0415 (the device is open now)

    monkeypatch.setattr(room, "pieces", lambda rows, row_bytes: [80, 80, 32])
    nodes, parts = CASES[name]
    found, expected = both(tmp_path, tiny_model(nodes, [*PARTS, *parts], output_shape=None))
    assert np.abs(found - expected).max() < TOLERANCE


def launches(folder: Path, nodes: list[Any], parts: list[Any]) -> list[Any]:
    """Each kernel's written and read buffers, as tinygrad schedules them before it plans memory."""
    from tinygrad import Tensor  # noqa: PLC0415
    from tinygrad.uop.ops import Ops  # noqa: PLC0415

    network = rewritten(folder, tiny_model(nodes, parts, output_shape=None))
    result = network({"image": Tensor(np.ones((1, 3, 12, 16), np.float32)).contiguous().realize()})["result"]
    return [call.src[1:] for call in result.contiguous().schedule_linear().src if call.src[0].op is Ops.SINK]


def test_scores_are_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.compile import attention as room  # noqa: PLC0415

    monkeypatch.setattr(room, "PIECE_BYTES", HEADS * ROWS * 4 * 48)
    taken = launches(tmp_path, attention(SCALED), [*PARTS, SCALE])
    assert max(one.max_numel() for buffers in taken for one in buffers) == SCORES // 4


def test_a_piece_is_done_before_the_next_but_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lab.compile import attention as room  # noqa: PLC0415

    monkeypatch.setattr(room, "PIECE_BYTES", HEADS * ROWS * 4 * 48)
    big = [
        "".join("x" if one.max_numel() == SCORES // 4 else "-" for one in buffers[:2])
        for buffers in launches(tmp_path, attention(SCALED), [*PARTS, SCALE])
    ]
    kinds = {"x-": "s", "xx": "e", "-x": "r", "--": ""}  # scores, exponential, a reduction or product of either
    order = "".join(kinds[one] for one in big)
    assert order.count("s") == order.count("e") == 4
    assert "ss" not in order.replace("r", "")


@pytest.mark.parametrize(
    ("rows", "row_bytes", "expected"),
    [
        (880, 3520, [176] * 5),  # whole eights come before the largest divisor
        (3600, 2304, [400] * 9),
        (100, 4096, [100]),
        (1021, 4096, [256, 256, 256, 253]),  # a prime
        (64, 1 << 20, [16] * 4),
    ],
)
def test_pieces_are_equal_where_a_divisor_comes_near(rows: int, row_bytes: int, expected: list[int]) -> None:
    from lab.compile.attention import pieces  # noqa: PLC0415

    assert pieces(rows, row_bytes) == expected


def test_a_softmax_that_others_read_stays(tmp_path: Path) -> None:
    nodes = [*attention(SCALED)[:-1], node("ReduceMean", ["p"], ["mean"], axes=[1, 2, 3], keepdims=1),
             node("Add", ["m", "mean"], ["result"])]  # fmt: skip
    network = rewritten(tmp_path, tiny_model(nodes, [*PARTS, SCALE], output_shape=None))
    assert "Softmax" in {one.op for one in network.nodes}
