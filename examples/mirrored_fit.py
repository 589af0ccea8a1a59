"""Train a Keras 3 network on several devices with ``fit``, on digits.

On a machine with several GPUs it takes them all; elsewhere two logical devices of the
CPU stand in for them. Gradients travel in bfloat16, all in one collective. Mixed
precision is switched on from outside:

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python examples/mirrored_fit.py
"""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

import keras_callbacks

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

BATCH = 64


def split_the_cpu_without_gpus() -> None:
    """Make two logical devices of the CPU, unless there are GPUs to train on."""
    if len(tf.config.list_physical_devices("GPU")) < 2:
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        tf.config.set_visible_devices([], "GPU")


def load_data() -> list[np.ndarray]:
    """Return train images [n, 8, 8, 1], test images, train labels, test labels."""
    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[..., None]
    labels = digits.target.astype("int32")
    return train_test_split(images, labels, test_size=0.25, random_state=0)


def batches_of(images: np.ndarray, labels: np.ndarray) -> tf.data.Dataset:
    """Return batches as large as all devices together take in a step."""
    pairs = tf.data.Dataset.from_tensor_slices((images, labels))
    return pairs.shuffle(2000, seed=1).batch(BATCH, drop_remainder=True)


def build_model() -> keras.Model:
    """Return two convolutions and two dense layers, compiled with Adam."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Train for five epochs; print what was exchanged and the final accuracy."""
    split_the_cpu_without_gpus()
    keras.utils.set_random_seed(1)
    train_x, test_x, train_y, test_y = load_data()
    strategy = keras_callbacks.mirrored_strategy(all_reduce="bfloat16")
    with strategy.scope():
        model = build_model()
    model.fit(batches_of(train_x, train_y), epochs=5, verbose=2)
    for exchange in strategy.exchanges:
        print(exchange)
    # What is saved is the model itself, which one device loads.
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "digits.keras")
        model.save(path)
        alone = keras.models.load_model(path)
    predicted = alone.predict(test_x, verbose=0).argmax(axis=1)
    print(f"final accuracy {(predicted == test_y).mean():.4f}")


if __name__ == "__main__":
    main()
