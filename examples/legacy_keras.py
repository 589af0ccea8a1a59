"""Train with Keras 2 (``tf_keras``), which TensorFlow uses when the variable says so.

Nothing in this file knows about mixed precision. Switch it on from outside:

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python examples/legacy_keras.py
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None


def main() -> None:
    """Train a small network with ``tf.keras`` and print its accuracy."""
    keras = tf.keras
    if not keras.layers.Layer.__module__.startswith("tf_keras."):
        raise RuntimeError("tf.keras is not Keras 2: pip install tf_keras")
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[..., None]
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target, test_size=0.25, random_state=0
    )
    model = keras.Sequential(
        [
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    model.fit(train_x, train_y, batch_size=64, epochs=4, verbose=2)
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    print(f"final accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
