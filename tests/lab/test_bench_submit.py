"""The submit benchmark measures two sides that compute the same bytes, on the emulated GPU."""

from __future__ import annotations

from tests.support import hcq

CODE = """
import json
from lab.bench import dispatch, submit
dispatch.LAUNCHES = (1, 3)
rows = submit.run(2) + dispatch.run(2, "hcq")
print(json.dumps([[row.name, row.peer, row.ours > 0, row.theirs > 0, gpu.failure] for row in rows]))
"""
BROKEN = """
import json
from lab.bench import dispatch, submit
dispatch.LAUNCHES = (1,)
chain = dispatch.chain
def another(*arguments, **keywords):
    peer, module, expected = chain(*arguments, **keywords)
    return peer, module, bytes(len(expected))
dispatch.chain = another
try:
    submit.run(2)
except RuntimeError as error:
    print(json.dumps(str(error)))
"""


def test_both_sides_of_the_submit_rows_compute_the_same() -> None:
    hcq.require_emulator()
    rows = hcq.run(CODE, vehicle=False)
    assert [row[0] for row in rows] == ["submit hcq 1", "submit hcq 3", "dispatch hcq 1", "dispatch hcq 3"]
    assert [row[1] for row in rows] == ["TinyJit call"] * 2 + ["TinyJit call + synchronize"] * 2
    assert [row[2:] for row in rows] == [[True, True, ""]] * 4


def test_sides_that_differ_are_an_error() -> None:
    hcq.require_emulator()
    assert "different bytes" in hcq.run(BROKEN, vehicle=False)
