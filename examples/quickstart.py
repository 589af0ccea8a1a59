"""Train a small network, and print what mixed precision does to its steps.

python examples/quickstart.py
"""

import keras
import numpy as np

import tf_amp

tf_amp.enable()
model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = np.ones((256, 32), "float32"), np.zeros(256, int)
model.fit(x, y, epochs=2, verbose=2)
print(f"{len(tf_amp.plans())} graphs rewritten; loss scale {tf_amp.loss_scale_state()}")
