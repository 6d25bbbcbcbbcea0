"""Which test shows each row of cases/signing.md: attacks that a loader of signed models must survive.

A row whose test is renamed or lost fails here; a row that is added to the cases fails until it has one. Rows of
admission and self-test are shown twice: rule by rule in `tests/hal`, and against the whole daemon.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.named_tests import missing

_KEPT = "tests/signing/test_trust_state.py"
_TRUST, _STORE, _ROOT = "tests/signing/test_trust.py", "tests/signing/test_store.py", "tests/signing/test_root.py"
_ENVELOPE, _STATEMENT = "tests/signing/test_envelope.py", "tests/signing/test_statement.py"
_JSON, _KEYS, _CONTAINER = (
    "tests/signing/test_strict_json.py",
    "tests/signing/test_keys.py",
    "tests/signing/test_container.py",
)
_LAX_JSON = f"{_JSON}::test_lax_json_is_refused"
_HOSTILE = "tests/daemon/test_hostile_bundles.py::test_a_signed_but_hostile_or_dead_bundle_is_refused_by_name"
_ADMISSION = "tests/hal/test_admit.py::test_one_wrong_field_is_refused_in_these_words"

CASES: dict[int, tuple[str, ...]] = {
    1: (f"{_TRUST}::test_unsigned_bundle_is_refused", f"{_ENVELOPE}::test_empty_signature_is_no_signature"),
    2: (f"{_ROOT}::test_value_out_of_range_is_refused", f"{_ROOT}::test_threshold_counts_the_keys_of_each_algorithm"),
    3: (f"{_TRUST}::test_threshold_counts_distinct_keys",),
    4: (
        f"{_TRUST}::test_hybrid_bundle_needs_every_algorithm",
        f"{_TRUST}::test_statement_alone_can_require_an_algorithm",
    ),
    5: (
        f"{_KEYS}::test_unknown_algorithm_is_refused",
        f"{_ROOT}::test_key_of_an_unknown_algorithm_is_refused",
        f"{_STATEMENT}::test_required_algorithms_are_known_and_at_least_one",
    ),
    6: (
        f"{_ENVELOPE}::test_malleable_signature_is_refused",
        f"{_TRUST}::test_wrong_signature_by_a_known_key_is_refused",
    ),
    7: (
        f"{_ENVELOPE}::test_wrong_payload_type_is_refused",
        f"{_TRUST}::test_root_passed_as_a_bundle_is_refused",
        f"{_TRUST}::test_bundle_passed_as_a_root_is_refused",
        f"{_TRUST}::test_bundle_signatures_do_not_carry_over_to_another_type",
    ),
    8: (
        f"{_ENVELOPE}::test_pae_counts_bytes_not_characters",
        f"{_ENVELOPE}::test_odd_payload_type_is_refused",
    ),
    9: (
        _LAX_JSON,
        f"{_ENVELOPE}::test_two_payloads_are_refused",
        f"{_STATEMENT}::test_duplicate_names_are_refused",
    ),
    10: (_LAX_JSON, f"{_JSON}::test_refusing_takes_bounded_memory"),
    11: (f"{_JSON}::test_lax_base64_is_refused", f"{_ENVELOPE}::test_odd_key_id_is_refused"),
    12: (
        f"{_KEPT}::test_older_release_is_refused_after_a_newer_was_confirmed",
        f"{_KEPT}::test_same_release_with_other_content_is_refused",
        "tests/daemon/test_trust_store.py"
        "::test_release_4_after_5_was_confirmed_is_refused_over_the_control_socket_also_after_a_restart",
    ),
    13: (f"{_KEPT}::test_release_raised_too_far_is_recovered_by_a_root",),
    14: (
        f"{_TRUST}::test_expired_statement_is_refused_from_its_second_on",
        f"{_TRUST}::test_key_counts_only_within_its_window",
        f"{_TRUST}::test_running_model_is_not_touched_by_time",
    ),
    15: (f"{_TRUST}::test_one_role_does_not_stand_for_another", f"{_KEPT}::test_build_key_cannot_sign_a_root"),
    16: (
        f"{_KEPT}::test_root_must_be_the_next_version",
        f"{_KEPT}::test_rotation_needs_old_and_new_thresholds",
        "tests/daemon/test_trust_store.py::test_a_break_in_the_chain_is_refused_and_audited",
    ),
    17: (f"{_TRUST}::test_blob_of_another_bundle_is_refused_by_name",),
    18: (
        f"{_TRUST}::test_other_machine_is_refused",
        f"{_TRUST}::test_device_id_is_compared_where_the_bundle_names_one",
    ),
    19: (
        f"{_STORE}::test_declared_size_beyond_the_file_is_refused_before_memory_is_taken",
        f"{_STORE}::test_file_longer_or_shorter_than_signed_is_refused",
        f"{_STORE}::test_padding_that_is_not_zero_is_refused",
        f"{_CONTAINER}::test_sizes_do_not_wrap",
    ),
    20: (f"{_STATEMENT}::test_odd_name_is_refused", f"{_STATEMENT}::test_duplicate_names_are_refused"),
    21: (
        f"{_STORE}::test_odd_file_is_refused",
        f"{_STORE}::test_device_is_refused_and_not_opened",
        f"{_STORE}::test_hard_link_is_refused",
    ),
    22: (
        f"{_STORE}::test_swap_after_reading_changes_nothing",
        "tests/daemon/test_models.py::test_loaded_bytes_are_the_verified_ones",
    ),
    23: (f"{_STORE}::test_truncating_after_reading_changes_nothing",),
    24: (
        f"{_STATEMENT}::test_blob_that_nobody_reads_is_refused",
        "tests/daemon/test_hostile_bundles.py::test_a_smuggled_pickle_is_refused_and_never_unpickled",
    ),
    25: (_ADMISSION, _HOSTILE),
    26: (_ADMISSION, _HOSTILE),
    27: (_ADMISSION, _HOSTILE),
    28: (_HOSTILE, "tests/daemon/test_models.py::test_a_bad_bundle_is_refused_by_name_and_the_old_model_serves_on"),
    29: (f"{_KEPT}::test_revoked_key_is_refused_by_name", f"{_KEPT}::test_revoked_bundle_is_refused"),
    30: (
        "tests/signing/test_store_crash.py::test_state_is_old_or_new_after_a_kill_before_any_call",
        "tests/signing/test_store_crash.py::test_state_is_old_or_new_after_a_power_cut",
    ),
    31: ("tests/signing/test_store_large.py::test_last_byte_beyond_2_gib_counts", f"{_STORE}::test_every_byte_counts"),
    32: (
        "tests/signing/test_lab_keys.py::test_key_open_to_others_is_not_used",
        "tests/signing/test_lab_keys.py::test_key_inside_a_vehicle_tree_is_neither_made_nor_used",
    ),
}


@pytest.mark.parametrize("row", CASES)
def test_the_tests_of_a_row_are_there(row: int) -> None:
    assert missing(CASES[row]) == []


def test_every_row_of_the_cases_has_its_tests(shared_dir: Path) -> None:
    text = (shared_dir / "cases" / "signing.md").read_text()
    rows = {int(found) for found in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert rows == set(CASES)


def test_a_test_that_is_not_there_is_noticed() -> None:
    gone = ["tests/signing/test_trust.py::test_gone", "tests/gone.py::test_gone"]
    assert missing([*gone, *CASES[3]]) == gone
