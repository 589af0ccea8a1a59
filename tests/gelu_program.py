"""A program of three products with gelu, whose plan hangs on prices."""

from __future__ import annotations

_STEP = """
x = tf.random.stateless_normal([{edge}, {edge}], [1, 2])
w, b = tf.ones([{edge}, {edge}]), tf.ones([{edge}])

@tf.function
def step(x):
    for _ in range(3):
        x = tf.nn.gelu(x @ w + b)
    return tf.reduce_sum(x)

step(x)
"""


def gelu_program(before: str = "", after: str = "", *, edge: int = 256) -> str:
    """Return its text.

    Args:
      before: lines to run first, after the imports of `tf` and `tf_amp`.
      after: lines to run last; `step` and `x` are there.
      edge: of its square matrices.
    """
    imports = "import tensorflow as tf\nimport tf_amp\n"
    return "\n".join([imports, before, _STEP.format(edge=edge), after])
