"""Op lists of the user's own against the rule of what rounding harms."""

from __future__ import annotations

import pytest

from tests.forking import run_forked

PROGRAM = """
import tensorflow as tf, tf_amp
tf_amp.enable(dtype="bfloat16", opt_level="O2", lists={lists})
x = tf.ones((8, 8))
for _ in range(2):
    tf.function(lambda x: tf.math.log(tf.sigmoid(x @ x)))(x)
"""


@pytest.mark.parametrize(
    ("lists", "times"),
    [({"add": {"clear": ["Log"]}}, 1), ({"add": {"deny": ["Log"]}}, 0), ({}, 0)],
)
def test_one_warning_names_the_ops_that_the_user_frees(
    lists: dict[str, object], times: int
) -> None:
    done = run_forked(PROGRAM.format(lists=lists))
    assert done.err.count("Your op lists let Log compute in 16 bits") == times
