"""Switch mixed precision on inside the script, after TensorFlow is imported.

This works until the first function is traced or the first Session is made.

    python examples/set_in_script.py
"""

import os

import keras
import tensorflow as tf

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"


def main() -> None:
    """Train a perceptron with ``fit`` and print its accuracy."""
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images = (digits.data / 16.0).astype("float32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target, test_size=0.25, random_state=0
    )
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss)
    batches = tf.data.Dataset.from_tensor_slices((train_x, train_y))
    model.fit(batches.shuffle(2000, seed=1).batch(64), epochs=6, verbose=2)
    predicted = model.predict(test_x, verbose=0).argmax(axis=1)
    print(f"final accuracy {(predicted == test_y).mean():.4f}")


if __name__ == "__main__":
    main()
