"""The scripts, models and data that the commands are given: small, and without chance.

Their graphs have nothing that TensorFlow fuses on some machines only.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile

from tests.forking import run_forked

_TRAINING = """
import sys
import tensorflow as tf

first = tf.Variable(tf.ones([512, 512]) / 512.0, name="first")
second = tf.Variable(tf.ones([512, 512]) / 512.0, name="second")

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.exp(tf.tanh(x @ first) @ second))
    for each, gradient in zip((first, second), tape.gradient(loss, (first, second))):
        each.assign_sub(0.125 * gradient)
    return loss

for _ in range(2):
    step(tf.ones([256, 512]))
print("trained with", sys.argv[1:])
"""
_LARGE = """
import tensorflow as tf

@tf.function
def large(x):
    return tf.tanh((x @ x) @ x * 2.0**-31)

large(tf.fill([64, 64], 64.0))
"""
SCRIPTS = {
    "train.py": _TRAINING,
    "large.py": _LARGE,
    "idle.py": "print('no graph')\n",
    "lessons/verdicts.json": '{"format": 1, "devices": {"a CPU": {"learned": '
    '{"matmul 256x256x256 bfloat16 (cpu-generic)": [0.5, 0.52, 0.51], '
    '"Tanh 65536 bfloat16 (cpu-generic)": [0.5]}}}}\n',
    "failing.py": "raise SystemExit(3)\n",
    "steps.py": "def make_step(batch):\n"
    "    import tensorflow as tf\n"
    "    x, w = tf.Variable(tf.ones([batch, 64])), tf.Variable(tf.ones([64, 64]))\n"
    "    return tf.function(lambda: tf.tanh(x @ w))\n",
}
_MODELS = """
import keras
import numpy as np
import tensorflow as tf
import tf_amp

class Net(tf.Module):
    def __init__(self):
        self.first = tf.Variable(tf.ones([512, 512]) / 512.0, name="first")
        self.second = tf.Variable(tf.ones([512, 512]) / 512.0, name="second")

    @tf.function(input_signature=[tf.TensorSpec([None, 512], name="x")])
    def serve(self, x):
        return {"y": tf.tanh(x @ self.first) @ self.second}

net = Net()
tf.saved_model.save(net, "model", signatures={"serve": net.serve})
with tf.Graph().as_default() as graph:
    x = tf.compat.v1.placeholder(tf.float32, (None, 512), name="x")
    tf.identity(tf.tanh(x @ tf.ones([512, 512])), name="y")
open("frozen.pb", "wb").write(graph.as_graph_def().SerializeToString())
layers = [keras.Input([512], name="x"), keras.layers.Dense(512, name="dense")]
keras.Sequential(layers, name="net").save("net.keras")
np.savez("data.npz", x=np.ones([64, 512], np.float32))
np.savez("other.npz", z=np.ones([64, 512], np.float32))
spec = tf.TensorSpec([256, 512], name="x")
plan = tf_amp.explain(net.serve.get_concrete_function(spec))
open("plan.json", "w").write(plan.to_json())
open("broken.json", "w").write(plan.to_json()[:-9])
"""


@functools.cache
def given_folder() -> pathlib.Path:
    """Return a folder with all of it, made once per process; to be copied."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tf-amp-given-"))
    for name, text in SCRIPTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    env = {"TF_AMP_DEVICE_PROFILE": "v100", "TF_AMP_OPT_LEVEL": "O2"}
    run_forked(_MODELS, env=env, cwd=folder).lines()
    return folder
