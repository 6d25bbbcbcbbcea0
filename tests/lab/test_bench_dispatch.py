"""The dispatch benchmark measures two sides that compute the same bytes; its rows say which is faster."""

from __future__ import annotations

import time

import pytest

from hal.accelerator import open_accelerator
from hal.fence import FenceStatus
from lab.bench import dispatch
from lab.bench.row import Row, make_row


def test_a_row_compares_medians_and_tells_the_spread() -> None:
    row = make_row("x", [10, 20, 30, 40, 1000], [300, 100, 200], "peer", reach=2.0, note="n")
    assert row == Row("x", 30, 200, "ns", "peer", 200 / 30, row.spread, 2.0, "n", row.ratios)
    assert row.spread > 1
    assert make_row("x", [10, 10], [10], "peer").spread == 0


@pytest.mark.parametrize("launches", [1, 4, 5])
def test_both_sides_of_the_dispatch_row_compute_the_same(launches: int) -> None:
    target = dispatch.open_bench_target("cpu")
    with target.context():
        peer, module, expected = dispatch.chain(target, launches)
        peer()
    accelerator = open_accelerator("cpu")
    executable = accelerator.load(module)
    assert executable.admission.entrypoints[0].launches == launches
    bindings = executable.bindings(0)
    frame, output = accelerator.allocate("f", 1024), accelerator.allocate("o", 4096)
    frame.view[:] = bytes(range(256)) * 4
    bindings.bind_frame(0, frame)
    bindings.bind_output(0, output)
    fence = accelerator.submit(executable, bindings)
    assert fence.wait(time.monotonic_ns() + 60_000_000_000) is FenceStatus.SIGNALED
    assert bytes(output.view) == expected
    assert output.view.cast("f")[7] == 7 + launches - 1
    accelerator.close()
