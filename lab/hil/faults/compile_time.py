"""Rows that no daemon can ever meet, because the compiler refuses them first: its refusals, and the tests of them."""

from __future__ import annotations

from lab.compile.refusal import CompileRefusal
from lab.hil.faults.fault import CompileCheck

__all__ = ["COMPILE_CHECKS"]

_MODEL = "tests/lab/compile/test_compile_model.py"
_BUNDLE = "tests/lab/compile/test_compile_bundle.py"
_PIPELINE = "tests/lab/compile/test_python_pipeline.py"

COMPILE_CHECKS = (
    CompileCheck(
        "runtime/3", "a scalar or tensor is frozen at capture", "refused: an input that changes nothing",
        (CompileRefusal.INPUT_WITHOUT_EFFECT,),
        (f"{_BUNDLE}::test_an_input_that_changes_nothing_is_refused",
         f"{_PIPELINE}::test_a_value_frozen_at_capture_is_found"),
    ),
    CompileCheck(
        "runtime/4", "list input silently frozen", "refused, or each element is an input", (CompileRefusal.PIPELINE,),
        (f"{_PIPELINE}::test_what_would_be_frozen_or_lost_is_refused",),
    ),
    CompileCheck(
        "runtime/5", "capture differs from replay", "bit-equal, or refused", (CompileRefusal.CAPTURE_DIFFERS,),
        (f"{_BUNDLE}::test_goldens_are_what_the_device_computes_from_their_seeds",
         f"{_PIPELINE}::test_a_value_frozen_at_capture_is_found"),
    ),
    CompileCheck(
        "runtime/18", "an operator the compiler lacks", "refused, naming node, operator and domain",
        (CompileRefusal.FOREIGN_DOMAIN, CompileRefusal.UNKNOWN_OPERATOR),
        (f"{_MODEL}::test_a_foreign_domain_names_node_operator_and_domain",
         f"{_MODEL}::test_an_unknown_operator_names_node_and_operator"),
    ),
    CompileCheck(
        "runtime/19", "dynamic batch -1", "refused, asking for the size, or taken from the spec",
        (CompileRefusal.DYNAMIC_SIZE,), (f"{_MODEL}::test_a_dynamic_batch_is_taken_from_the_spec",),
    ),
    CompileCheck(
        "runtime/20", "empty initialiser", "refused", (CompileRefusal.EMPTY_INITIALISER,),
        (f"{_MODEL}::test_an_empty_initialiser_is_refused_by_name",),
    ),
    CompileCheck(
        "runtime/21", "int8 quantised model", "compiles, or is refused naming the operator",
        (CompileRefusal.UNKNOWN_OPERATOR, CompileRefusal.UNSUPPORTED_DTYPE),
        (f"{_BUNDLE}::test_quantised_nodes_compile",),
    ),
)  # fmt: skip
"""The rows of cases/runtime.md that are decided when a model is compiled."""
