"""Which test shows each row of cases/runtime.md: failures that users of inference runtimes reported in public.

A row whose test is renamed or lost fails here; a row that is added to the cases fails until it has one. `_INJECTED`
puts the fault into a whole daemon (`lab.hil.faults`); the tests beside it look at the part that has to find it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.hil.faults.index import FAULTS
from tests.support.named_tests import missing

_INJECTED = "tests/lab/hil/test_faults.py::test_a_fault_gets_the_right_answer"
_COMPILE = "tests/lab/compile"
_BUNDLE, _MODEL = f"{_COMPILE}/test_compile_bundle.py", f"{_COMPILE}/test_compile_model.py"
_PIPELINE, _ARTIFACT = f"{_COMPILE}/test_python_pipeline.py", f"{_COMPILE}/test_artifact.py"
_ENTRIES = f"{_COMPILE}/test_entrypoints.py"
_DEVICE, _READY = "tests/daemon/test_device.py", "tests/daemon/test_ready.py"
_ADMISSION = "tests/hal/test_admit.py"

CASES: dict[int, tuple[str, ...]] = {
    1: (_INJECTED, f"{_ARTIFACT}::test_a_process_that_captured_nothing_gets_each_inputs_own_result"),
    2: (
        _INJECTED,
        f"{_PIPELINE}::test_a_rolling_buffer_is_numpys_over_twenty_steps",
        f"{_PIPELINE}::test_states_that_are_exchanged_are_not_overwritten",
        f"{_ENTRIES}::test_entrypoints_in_any_turn_are_numpys",
    ),
    3: (
        f"{_BUNDLE}::test_an_input_that_changes_nothing_is_refused",
        f"{_PIPELINE}::test_what_would_be_frozen_or_lost_is_refused",
        f"{_PIPELINE}::test_a_value_frozen_at_capture_is_found",
        f"{_PIPELINE}::test_a_value_frozen_at_capture_that_no_run_shows_is_found",
    ),
    4: (
        f"{_PIPELINE}::test_what_would_be_frozen_or_lost_is_refused",
        f"{_PIPELINE}::test_a_list_made_of_inputs_keeps_each_an_input",
    ),
    5: (
        f"{_PIPELINE}::test_a_value_frozen_at_capture_is_found",
        f"{_ARTIFACT}::test_a_packed_bundle_that_gives_other_bits_is_refused",
        f"{_ENTRIES}::test_a_state_that_the_bundle_leaves_otherwise_is_found_in_turn",
    ),
    6: (
        _INJECTED,
        f"{_ARTIFACT}::test_a_device_that_rounds_half_precision_otherwise_fails_the_self_test",
        f"{_ENTRIES}::test_an_entrypoint_without_outputs_is_held_to_the_state_it_leaves",
    ),
    7: (_INJECTED, "tests/daemon/test_hot_path.py::test_a_frame_raises_no_audit_event_and_keeps_no_memory"),
    8: (
        _INJECTED,
        f"{_DEVICE}::test_a_run_beyond_its_budget_is_reset_and_its_frame_is_lost",
        "tests/hal/test_fence.py::test_a_hang_latches_every_fence_in_flight_and_the_device_cannot_undo_it",
    ),
    9: (_INJECTED, f"{_READY}::test_a_slow_load_asks_for_more_time_and_is_not_ready_until_it_serves"),
    10: (_INJECTED, f"{_READY}::test_a_bundle_for_another_hal_interface_is_refused_before_anything_of_it_is_parsed"),
    11: (_INJECTED, f"{_READY}::test_a_bundle_that_lacks_a_field_is_refused_and_the_old_model_serves_on"),
    12: (
        _INJECTED,
        f"{_DEVICE}::test_a_device_that_latches_frees_no_slot_before_its_reset",
        f"{_DEVICE}::test_a_device_that_cannot_be_reset_ends_the_daemon",
        "tests/daemon/test_process.py::test_a_hang_that_cannot_be_reset_ends_the_process_with_a_fault",
    ),
    13: (
        _INJECTED,
        "tests/daemon/test_telemetry.py::test_a_metrics_reader_that_stops_reading_stalls_no_frame",
        "tests/daemon/test_telemetry.py::test_a_log_reader_that_stops_reading_stalls_no_frame",
        "tests/daemon/test_process.py::test_a_stalled_log_reader_does_not_stall_frames",
    ),
    14: (_INJECTED, f"{_READY}::test_the_device_has_run_everything_before_ready"),
    15: (
        _INJECTED,
        f"{_ADMISSION}::test_one_wrong_field_is_refused_in_these_words",
        f"{_ARTIFACT}::test_a_value_that_leaves_the_device_is_refused",
    ),
    16: (
        _INJECTED,
        f"{_DEVICE}::test_an_output_that_was_not_written_trips_the_canary",
        "tests/conformance/test_conformance.py::test_a_broken_driver_is_caught",
    ),
    17: (
        _INJECTED,
        "tests/daemon/test_serving.py::test_a_camera_killed_in_flight_is_seen_and_its_frame_still_counted",
        "tests/daemon/test_deaths.py::test_a_camera_that_dies_at_any_step_leaves_nothing_and_frees_its_stream",
    ),
    18: (
        f"{_MODEL}::test_a_foreign_domain_names_node_operator_and_domain",
        f"{_MODEL}::test_an_unknown_operator_names_node_and_operator",
        f"{_MODEL}::test_an_operator_inside_a_subgraph_is_found",
    ),
    19: (
        f"{_MODEL}::test_a_dynamic_batch_is_taken_from_the_spec",
        f"{_MODEL}::test_another_fixed_size_than_the_specs_is_refused_with_both",
    ),
    20: (f"{_MODEL}::test_an_empty_initialiser_is_refused_by_name",),
    21: (
        f"{_BUNDLE}::test_quantised_nodes_compile",
        f"{_BUNDLE}::test_a_convolution_of_integers_compiles_and_integers_without_an_operator_are_refused_by_it",
    ),
    22: (
        _INJECTED,
        f"{_ADMISSION}::test_two_inputs_over_one_buffer_are_refused",
        "tests/hal/test_bindings.py::test_two_bindings_never_share_a_byte",
    ),
}


@pytest.mark.parametrize("row", CASES)
def test_the_tests_of_a_row_are_there(row: int) -> None:
    assert not missing(CASES[row])


def test_a_row_that_is_said_to_be_injected_is() -> None:
    injected = {fault.row for fault in FAULTS}
    assert {f"runtime/{row}" for row, tests in CASES.items() if _INJECTED in tests} <= injected


def test_every_row_of_the_cases_has_its_tests(shared_dir: Path) -> None:
    text = (shared_dir / "cases" / "runtime.md").read_text()
    rows = {int(found) for found in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert rows == set(CASES)
