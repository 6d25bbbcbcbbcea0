"""A lane's evaluation of queue variables, against tinygrad's own, on NV's and QCOM's commands. Needs no device."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from hal.error import HalCode, HalError
from hal.hcq_lane import _evaluator, _patches

tinygrad = pytest.importorskip("tinygrad")
U64 = (1 << 64) - 1


def variables() -> list[Any]:
    from tinygrad.dtype import dtypes  # noqa: PLC0415 (only where tinygrad is)
    from tinygrad.uop.ops import UOp  # noqa: PLC0415

    return [UOp.variable(name, 0, U64, dtypes.uint64) for name in ("signal", "after", "bound0")]


def queue_of(backend: str, signal: Any, after: Any) -> Any:
    """The commands of a lane around its launches, with a timeline that varies."""
    from tinygrad.runtime.support.hcq import HCQBuffer  # noqa: PLC0415

    if backend == "NV":
        from tinygrad.runtime.ops_nv import NVComputeQueue as Queue  # noqa: PLC0415
        from tinygrad.runtime.ops_nv import NVSignal as Signal  # noqa: PLC0415

        queue = Queue()
    else:
        from tinygrad.runtime.ops_qcom import QCOMComputeQueue as Queue  # noqa: PLC0415
        from tinygrad.runtime.ops_qcom import QCOMSignal as Signal  # noqa: PLC0415

        queue = Queue(SimpleNamespace(gpu_id=(6, 3, 0), dummy_addr=0x1000))
    timeline = Signal(HCQBuffer(signal, 16), is_timeline=True)
    queue.memory_barrier()
    queue.wait(timeline, after)
    queue.timestamp(Signal(HCQBuffer(0x7000_0000_1000, 16), virt=True))
    queue.signal(timeline, after + 1)
    return queue


@pytest.mark.parametrize("backend", ["NV", "QCOM"])
def test_words_are_patched_as_tinygrad_itself_would(backend: str) -> None:
    signal, after, bound = variables()
    queue = queue_of(backend, signal, after)
    memory = SimpleNamespace(words=[0, 0])
    queue.mv_sints.append((memory.words, 0, queue._new_sym(bound + 96), None))
    queue.mv_sints.append((memory.words, 1, queue._new_sym((bound + 96) >> 32), 0xFFFF))
    other = queue_of(backend, signal, after)
    patches = _patches(queue, {"signal": 0, "after": 1, "bound0": 2})
    assert len(queue.q_sints) >= 4
    chosen = random.Random(1)
    for _ in range(50):
        values = [chosen.getrandbits(48), chosen.getrandbits(31), chosen.getrandbits(46)]
        memory.words[1] = 0xABCD_1234
        for patch in patches:
            patch._last = None
            patch.apply(values)
        other._apply_var_vals(dict(zip(("signal", "after", "bound0"), values, strict=True)))
        assert queue._q == other._q
        assert memory.words[0] == values[2] + 96
        assert memory.words[1] == 0xABCD_0000 | (values[2] + 96) >> 32


def test_only_words_that_change_are_written() -> None:
    signal, after, _ = variables()
    queue = queue_of("NV", signal, after)
    patches = _patches(queue, {"signal": 0, "after": 1})
    for patch in patches:
        patch.apply([1 << 40, 7, 0])
    queue._q = [0] * len(queue._q)
    for patch in patches:
        patch.words = [(queue._q, index, mask) for _, index, mask in patch.words]
        patch.apply([1 << 40, 8, 0])
    at = {name: [index for index, symbol in queue.q_sints if queue.syms[symbol] is one]
          for name, one in (("after", after),)}  # fmt: skip
    assert [queue._q[index] for index in at["after"]] == [8] * len(at["after"])
    assert (1 << 40) >> 32 not in queue._q


def test_an_expression_of_another_kind_is_refused() -> None:
    _, after, _ = variables()
    with pytest.raises(HalError) as caught:
        _evaluator(after // 3, {"after": 1})
    assert caught.value.code is HalCode.CODE
