"""Two workers in step: one checkpoint for both, from which both go on as they were.

They train by tf_keras' `fit`, whose callback has the chief write to the folder of the
user, and the other worker to one that it removes.
"""

import ast
import pathlib

from tests.clusters import run_job

CHIEF, OTHER = ("worker", 0), ("worker", 1)
PROGRAM = """
import hashlib
import os
import pathlib
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
import tf_keras
import tf_amp
from tf_amp.training import checkpoint_record

EPOCHS, STEPS, SIZE = 3, 3, 512
folder = pathlib.Path(os.environ["FOLDER"])
resumed = int(os.environ["RESUMED"])

written, write = [], checkpoint_record.write_beside
def noting(path, record):
    written.append(pathlib.Path(path).parent == folder)
    write(path, record)
checkpoint_record.write_beside = noting

tf_keras.utils.set_random_seed(1)
with strategy.scope():
    hidden = [tf_keras.layers.Dense(SIZE, "relu") for _ in range(2)]
    model = tf_keras.Sequential([tf_keras.Input((SIZE,)), *hidden])
    optimizer = tf_keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, lambda y, z: tf.reduce_sum((y - z) ** 2) / 2.0**8)
    if resumed:
        model.load_weights(folder / f"m-{resumed}.weights.h5")

rng = np.random.default_rng(task)
x = rng.normal(size=(STEPS * 2 * SIZE, SIZE)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x))
data = data.batch(2 * SIZE, drop_remainder=True).repeat()
model.fit(
    strategy.distribute_datasets_from_function(lambda _: data),
    initial_epoch=resumed,
    epochs=EPOCHS,
    steps_per_epoch=STEPS,
    verbose=0,
    callbacks=[
        tf_keras.callbacks.ModelCheckpoint(
            folder / "m-{epoch}.weights.h5", save_weights_only=True
        )
    ],
)

made = hashlib.sha256()
for variable in [*model.weights, *optimizer.variables]:
    made.update(strategy.experimental_local_results(variable)[0].numpy().tobytes())
state = tf_amp.loss_scale_state()
print(made.hexdigest(), state.scale, state.good_steps, state.skipped_steps)
plans = tf_amp.plans()
print([(p.graph, [d.slot.node for d in p.decisions if d.is_low]) for p in plans])
print(written)
"""
# So high that the first steps overflow, in bfloat16 as in float32.
SCALE = f"dynamic:initial={2.0**126},maximum={2.0**126},growth_interval=3"


def trained(folder: pathlib.Path, profile: str, resumed: int) -> dict:
    """Run a job; return what each worker prints."""
    env = {
        "TF_ENABLE_AUTO_MIXED_PRECISION": "bfloat16",
        "TF_AMP_LOSS_SCALE": SCALE,
        "TF_AMP_DEVICE_PROFILE": profile,
        "TF_AMP_TUNE": "off",
        "FOLDER": str(folder),
        "RESUMED": str(resumed),
    }
    return run_job(PROGRAM, {"worker": 2}, env)


def test_two_workers_write_one_checkpoint_and_resume_from_it_bit_for_bit(
    tmp_path: pathlib.Path,
) -> None:
    unbroken = trained(tmp_path, "cpu-avx512-bf16", 0)
    weights = [f"m-{epoch}.weights.h5" for epoch in (1, 2, 3)]
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == sorted([*weights, *(f"{name}.tf_amp.json" for name in weights)])
    assert unbroken[CHIEF][2] == "[True, True, True]"
    assert unbroken[OTHER][2] == "[False, False, False]"

    figures, plans = unbroken[CHIEF][:2]
    # Some of the nine steps overflow, and some do not.
    assert 0 < int(figures.split()[3]) < 9
    assert any(low for _, low in ast.literal_eval(plans))
    assert unbroken[OTHER][:2] == [figures, plans]

    # By the prices of this one nothing would be in 16 bits.
    resumed = trained(tmp_path, "cpu-generic", 2)
    assert resumed[CHIEF] == [figures, plans, "[True]"]
    assert resumed[OTHER] == [figures, plans, "[False]"]
