"""Which test shows each row of cases/frames.md: failures that users of camera stacks reported in public.

Every row is tried through the real sockets, and where pixels matter through a compiled bundle as well. A row whose test
is renamed or lost fails here; a row that is added to the cases fails until it has one. Beside these tests of the parts
the bench injects every row into a daemon process (`lab.hil.faults`); the rows of pictures are tried there alone.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_FORMATS, _TIMES = "daemon/test_frame_formats.py", "daemon/test_frame_times.py"
_SERVING, _PEERS, _CONSUMERS = "daemon/test_serving.py", "daemon/test_peers.py", "daemon/test_consumers.py"
_WRONG_FORMAT = f"{_FORMATS}::test_a_wrongly_declared_format_is_refused_by_field_and_sizes"
_INJECTED = "lab/hil/test_faults.py::test_a_fault_gets_the_right_answer"

CASES: dict[int, tuple[str, ...]] = {
    1: (_INJECTED,),
    2: (_INJECTED,),
    3: (_WRONG_FORMAT, f"{_FORMATS}::test_a_buffer_laid_out_for_another_stride_is_refused_at_registration"),
    4: (_INJECTED,),
    5: (_WRONG_FORMAT,),
    6: (_INJECTED,),
    7: (_INJECTED,),
    8: (_INJECTED,),
    9: (_INJECTED,),
    10: (_WRONG_FORMAT, "abi/test_format.py::test_nothing_is_guessed"),
    11: (
        f"{_TIMES}::test_ages_are_right_in_either_clock_after_a_suspend",
        f"{_TIMES}::test_a_wrongly_declared_clock_shows_by_its_name_and_amount",
    ),
    12: (f"{_TIMES}::test_frames_that_do_not_rise_are_refused_by_name_and_the_stream_goes_on",),
    13: (f"{_TIMES}::test_frames_that_do_not_rise_are_refused_by_name_and_the_stream_goes_on",),
    14: (
        f"{_SERVING}::test_a_frame_without_a_good_in_fence_never_runs",
        "daemon/test_dma_bufs.py::test_a_writer_that_never_ends_loses_its_frame_by_name",
        "daemon/test_sync_files.py::test_a_frame_whose_sync_file_ends_in_an_error_never_runs",
        "daemon/test_sync_files.py::test_a_frame_whose_sync_file_never_signals_is_lost_in_time",
    ),
    15: (
        f"{_SERVING}::test_a_frame_overwritten_with_its_control_word_raised_is_torn",
        f"{_SERVING}::test_a_frame_overwritten_behind_the_control_word_is_torn",
    ),
    16: (f"{_TIMES}::test_frames_that_do_not_rise_are_refused_by_name_and_the_stream_goes_on",),
    17: (f"{_PEERS}::test_connections_leave_no_descriptor_and_no_mapping_behind",),
    18: (
        f"{_SERVING}::test_generations_of_an_earlier_session_mean_nothing",
        "daemon/test_process.py::test_a_killed_daemon_starts_again_over_what_it_left",
    ),
    19: (_INJECTED, "lab/compile/test_compile_formats.py::test_luma_and_chroma_become_rgb_by_the_standard"),
    20: (_WRONG_FORMAT,),
    21: (_WRONG_FORMAT,),
    22: (_WRONG_FORMAT,),
    23: (f"{_PEERS}::test_a_silent_peer_is_closed_and_others_are_served",),
    24: (
        f"{_PEERS}::test_a_malformed_packet_closes_its_peer_with_a_typed_error",
        f"{_PEERS}::test_descriptors_that_nobody_asked_for_are_closed",
    ),
    25: (f"{_SERVING}::test_a_camera_killed_in_flight_is_seen_and_its_frame_still_counted",),
    26: ("daemon/test_process.py::test_a_second_daemon_on_the_same_sockets_is_refused_and_the_first_serves_on",),
    27: (f"{_CONSUMERS}::test_the_ring_cannot_be_written_however_it_is_opened",),
    28: (
        f"{_CONSUMERS}::test_a_dead_or_stopped_consumer_holds_nothing_up",
        "daemon/test_ring_readers.py::test_eight_readers_slow_stopped_and_dead_hold_nothing_and_stop_nobody",
    ),
    29: (
        f"{_TIMES}::test_a_skew_that_grows_and_shrinks_is_refused_only_beyond_its_limit",
        "daemon/test_inputs.py::test_pairs_of_frames_run_within_the_skew_and_recover",
    ),
    30: (
        "daemon/test_inputs.py::test_a_stale_aux_input_refuses_the_run_or_takes_the_signed_default",
        "daemon/test_inputs.py::test_an_aux_input_is_taken_with_its_age",
    ),
    31: (_WRONG_FORMAT,),
    32: (
        f"{_FORMATS}::test_memory_that_was_shrunk_or_could_be_is_refused_at_registration",
        f"{_PEERS}::test_a_bad_buffer_is_refused_at_registration",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", CASES)
def test_the_tests_of_a_row_are_there(row: int) -> None:
    for name in CASES[row]:
        path, test = name.split("::")
        tree = ast.parse((ROOT / "tests" / path).read_text())
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_every_row_of_the_cases_has_its_tests(shared_dir: Path) -> None:
    text = (shared_dir / "cases" / "frames.md").read_text()
    rows = {int(found) for found in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert rows == set(CASES)
