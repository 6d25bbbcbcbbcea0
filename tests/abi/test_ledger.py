"""The drop ledger: every frame in one column, and the columns add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi.flat import ReleaseStatus
from abi.ledger import Ledger
from abi.packet import RefusalCode

CODE = dict.fromkeys(ReleaseStatus, RefusalCode.OK) | {ReleaseStatus.REFUSED: RefusalCode.LIMIT}


@given(st.lists(st.one_of(st.none(), st.sampled_from(list(ReleaseStatus)))))
def test_the_columns_always_add_up(steps: list[ReleaseStatus | None]) -> None:
    """None submits; a status releases one of the held frames, or is refused where none is held."""
    ledger, held, expected = Ledger(), 0, dict.fromkeys(ReleaseStatus, 0)
    for status in steps:
        if status is None:
            ledger.submit()
            held += 1
        elif held:
            ledger.release(status, CODE[status])
            expected[status] += 1
            held -= 1
        else:
            with pytest.raises(RuntimeError, match="holds no frame"):
                ledger.release(status, CODE[status])
        assert ledger.held == held
        assert ledger.submitted == held + sum(expected.values())
        assert ledger.released == list(expected.values())


def test_each_status_has_its_own_column() -> None:
    for status in ReleaseStatus:
        ledger = Ledger()
        ledger.submit()
        ledger.release(status, CODE[status])
        columns = ledger.as_dict()
        assert columns.pop(status.name.lower()) == 1
        assert columns.pop("submitted") == 1
        assert columns.pop("refusals") == ({"limit": 1} if status is ReleaseStatus.REFUSED else {})
        assert columns == dict.fromkeys(columns, 0)


def test_the_status_shows_all_columns_and_reasons() -> None:
    ledger = Ledger()
    for gap in (0, 3, 0, 0):
        ledger.submit(gap)
    ledger.release(ReleaseStatus.RUN)
    ledger.release(ReleaseStatus.REFUSED, RefusalCode.TIME_STALE)
    ledger.release(ReleaseStatus.REFUSED, RefusalCode.TIME_STALE)
    assert ledger.as_dict() == {
        "submitted": 4, "run": 1, "superseded": 0, "late": 0, "torn": 0, "refused": 2, "lost": 0, "held": 1,
        "camera_dropped": 3, "refusals": {"time_stale": 2},
    }  # fmt: skip


@pytest.mark.parametrize("status", list(ReleaseStatus))
def test_a_code_comes_with_a_refusal_and_only_with_it(status: ReleaseStatus) -> None:
    ledger = Ledger()
    ledger.submit()
    wrong = RefusalCode.OK if status is ReleaseStatus.REFUSED else RefusalCode.LIMIT
    with pytest.raises(RuntimeError, match=f"status {status.name} cannot have code {wrong.name}"):
        ledger.release(status, wrong)
    assert (ledger.held, sum(ledger.released), ledger.refusals) == (1, 0, {})


def test_a_printed_ledger_shows_what_happened() -> None:
    ledger = Ledger()
    assert repr(ledger) == "Ledger()"
    ledger.submit(gap=2)
    ledger.submit()
    ledger.release(ReleaseStatus.RUN)
    assert repr(ledger) == "Ledger(submitted=2, run=1, held=1, camera_dropped=2)"


def test_what_did_not_run_is_every_end_but_a_run() -> None:
    ledger = Ledger()
    for status in ReleaseStatus:
        ledger.submit()
        ledger.release(status, CODE[status])
    ledger.submit()  # held: not ended, so not counted
    assert ledger.not_run == len(ReleaseStatus) - 1
