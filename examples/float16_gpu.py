"""Train in float16 with loss scaling on a GPU, and time it against float32.

    python examples/float16_gpu.py

Without a GPU the example runs all the same. On most CPUs float16 is slower than
float32, so that its steps then stay float32, and gain from fusions alone.
"""

import keras
import numpy as np
import tensorflow as tf

import keras_callbacks
import tf_amp

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None


def build_model(width: int) -> keras.Model:
    """Return a convolutional network for images [batch, 16, 16, 1]."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((16, 16, 1))])
    for channels, strides in ((width, 1), (2 * width, 2), (4 * width, 2)):
        model.add(layers.Conv2D(channels, 3, strides, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dense(10))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train, and print accuracy, loss scale and times of steps."""
    has_gpu = bool(tf.config.list_physical_devices("GPU"))
    if not has_gpu:
        print("There is no GPU here: float16 is for GPUs, and most CPUs keep float32.")
    tf_amp.enable("float16")
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images = np.kron(digits.images / 16, np.ones((2, 2)))[..., None].astype("float32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target, test_size=0.25, random_state=0
    )
    model = build_model(256 if has_gpu else 16)
    fit = {"batch_size": 64, "epochs": 3, "verbose": 0}
    # In these steps tf-amp itself tries both ways, where the prediction is close.
    model.fit(train_x, train_y, **fit)
    timer = keras_callbacks.StepTimeMonitor(compare=15)
    model.fit(train_x, train_y, callbacks=[timer], **fit)
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    state = tf_amp.loss_scale_state()
    print(f"loss scale {state.scale:g}, {state.skipped_steps} steps skipped")
    print(f"final accuracy {accuracy:.4f}")
    print(f"float32 -> tf-amp: {timer.comparison}")


if __name__ == "__main__":
    main()
