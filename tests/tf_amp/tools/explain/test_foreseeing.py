"""What is explained is what the first call will run, and how that is decided."""

import pytest

from tests.tf_amp.compare.test_own_steps import run

EXPLAINED = """
CostModel.price = lambda *args: believed(*args)._replace(error={error})
tf_amp.enable(dtype="bfloat16")
plan = tf_amp.explain(step, tf.constant(A))
labels_of(1)
print(plan.is_empty, len(tf_amp.plans()) == 0)
print(plan.details().rpartition("; ")[2])
"""


@pytest.mark.parametrize(
    ("error", "is_empty", "text"),
    [
        (
            3.0,
            True,
            "a close call: float32, and compared with 16 bits from the 21st call on",
        ),
        (0.35, False, "applied, and compared with float32 from the fifth call on"),
    ],
)
def test_what_is_in_doubt_is_explained_as_it_will_run(error, is_empty, text, tmp_path):
    lines = run(EXPLAINED.format(error=error), tmp_path)
    assert lines[-2:] == [f"{is_empty} {is_empty}", text]


def test_without_tuning_what_is_not_sure_stays_float32(tmp_path):
    lines = run(EXPLAINED.format(error=3.0), tmp_path, TF_AMP_TUNE="off")
    assert lines[-2] == "True True" and "a close call" not in lines[-1]
