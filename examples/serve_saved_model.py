"""Train, export a SavedModel, restore it and serve from its signature.

The exported model is float32 whether it was trained in mixed precision or not, since
only graphs about to run are rewritten. Nothing in this file knows about mixed
precision. Switch it on from outside:

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python examples/serve_saved_model.py
"""

import tempfile

import keras
import numpy as np
import tensorflow as tf

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None


def train_model(x: np.ndarray, y: np.ndarray) -> keras.Model:
    """Return a perceptron trained on images [n, 64]."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(2e-3), "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=64, epochs=6, verbose=2)
    return model


def main() -> None:
    """Train, export, restore, and print the accuracy of the restored model."""
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images = (digits.data / 16.0).astype("float32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target, test_size=0.25, random_state=0
    )
    model = train_model(train_x, train_y)
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, verbose=False)
        restored = tf.saved_model.load(folder)
        serve = restored.signatures["serving_default"]
        (name,) = serve.structured_input_signature[1]
        (scores,) = serve(**{name: tf.constant(test_x)}).values()
    if scores.dtype != tf.float32:
        raise RuntimeError(f"the signature returns {scores.dtype}, not float32")
    predicted = scores.numpy().argmax(axis=1)
    print(f"final accuracy {(predicted == test_y).mean():.4f}")


if __name__ == "__main__":
    main()
