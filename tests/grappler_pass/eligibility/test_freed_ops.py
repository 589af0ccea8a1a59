"""Op lists of the user's own against the rule of what rounding harms."""

from __future__ import annotations

import pytest

from grappler_pass.graph.op_lists import OpLists
from grappler_pass.planning.plan import Cause
from tests.coloring import color
from tests.forking import run_forked
from tests.small_graphs import CHAIN

LOGARITHM = f"""{CHAIN}
    act = Sigmoid(allow1)
    log = Log(act)
    fetch = Identity(log)
"""


def test_an_op_that_the_user_frees_goes_low_where_rounding_harms() -> None:
    assert color(LOGARITHM, fetch="fetch").colors("act log") == "F F"
    lists = OpLists.for_dtype("bfloat16").edited(
        add={"clear": ["Log"]}, remove={"infer": ["Log"]}
    )
    freed = color(LOGARITHM, fetch="fetch", lists=lists)
    # What it reads is rounded for it, and so may be rounded before.
    assert freed.colors("act log") == "L L"


def test_an_op_that_the_user_denies_is_not_freed() -> None:
    lists = OpLists.for_dtype("bfloat16").edited(
        add={"deny": ["Sigmoid"]}, remove={"infer": ["Sigmoid"]}
    )
    assert lists.freed == frozenset()
    assert color(LOGARITHM, fetch="fetch", lists=lists).cause("act") is Cause.DENY


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
