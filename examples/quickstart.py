"""Train a network, and print how many times as fast tf-amp makes its steps.

python examples/quickstart.py
"""

import keras
import numpy as np

import keras_callbacks
import tf_amp

tf_amp.enable()
layers = [keras.layers.Dense(2048, "relu"), keras.layers.Dense(2048, "relu")]
model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = np.ones((5120, 512), "float32"), np.zeros(5120, int)
# In these steps tf-amp itself tries both ways, where the prediction is close.
model.fit(x, y, batch_size=256, epochs=3, verbose=0)
timer = keras_callbacks.StepTimeMonitor(compare=15)
model.fit(x, y, batch_size=256, epochs=2, verbose=0, callbacks=[timer])
if not any(row.is_low for plan in tf_amp.plans() for row in plan.decisions):
    print(
        "No operation is in 16 bits here. `tf-amp doctor` says what this machine has."
    )
print(f"float32 -> tf-amp: {timer.comparison}")
