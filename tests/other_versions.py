"""Tests that older releases of TensorFlow fail, for what those do otherwise.

`make test-versions` expects them to fail, and says so where one passes.
"""

from __future__ import annotations

_XLA = "tests/tf_amp/rewriting/compiled"
_TAPES = f"{_XLA}/test_xla.py::test_gradients_are_in_16_bits_wherever_the_tape_is"
_RANGES = "tests/tf_amp/tools/ranges/test_ranges_under_xla.py"

# The first release that fails them, and the next that does not: why, and the
# beginnings of their names.
FAILURES = {
    ((2, 16), (2, 17)): {
        "XLA of TensorFlow 2.16 computes in float32 what is cast to bfloat16": (
            f"{_TAPES}[with_an_eager_tape_around-",
            f"{_TAPES}[with_a_tape_in_an_outer_function-",
            f"{_XLA}/test_xla.py::test_with_a_persistent_tape_for_gradients_of",
            f"{_XLA}/test_xla.py::test_loops_and_branches_are_rewritten_where",
            f"{_XLA}/test_xla_explain.py::test_the_environment_variable_is_all",
            f"{_RANGES}::test_what_left_the_safe_range_stays_float32_under_xla",
            f"{_RANGES}::test_scripts_are_recorded_in_loops_and_branches_of",
            "tests/tf_amp/tools/verify/test_checking_scripts.py"
            "::test_compiled_functions_are_verified_under_xla",
        ),
        "TensorFlow 2.16 traces other operations": (
            "tests/tf_amp/training/test_traced_texts.py"
            "::test_a_step_is_traced_as_it_was_reviewed[row_reads]",
            "tests/tf_amp/training/test_traced_texts.py"
            "::test_a_step_is_traced_as_it_was_reviewed[gelu_gradients]",
            "tests/test_docs.py::test_the_blocks_of_a_page_run_and_print_what_it_says"
            "[xla.md]",
            "tests/tf_amp/training/test_programs.py::test_a_program_prints_what_its_"
            "text_says[on parameter servers nothing is fused",
        ),
        "TensorFlow 2.16 does not fuse products of an attention": (
            "tests/grappler_pass/graph/test_fusions.py"
            "::test_lists_hold_for_what_a_running_program_had_fused",
        ),
        "The converter to TFLite of TensorFlow 2.16 gives Python's lock away": (
            "tests/test_shim.py"
            "::test_a_program_prints_what_its_text_says"
            "[a call that keeps the lock and waits for a graph ends]",
        ),
    },
    ((2, 19), (2, 21)): {
        "XLA of TensorFlow 2.19 and 2.20 sums a gradient in another order": (
            "tests/tf_amp/training/gradients/test_gradients.py"
            "::test_gradients_are_those_without_scaling_bit_by_bit_before_and_after_"
            "an_overflow[of_weights_and_inputs compiled]",
        ),
    },
}


def expected_failure(name: str, version: tuple[int, ...]) -> str | None:
    """Return why the test of this name fails with this release, or None."""
    for (first, passing), reasons in FAILURES.items():
        for reason, beginnings in reasons.items():
            if first <= version < passing and name.startswith(beginnings):
                return reason
    return None
