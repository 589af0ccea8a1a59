"""Train and evaluate a Keras 3 convolutional network with ``fit``, on digits.

Nothing in this file knows about mixed precision. Switch it on from outside:

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python examples/keras_fit.py
"""

import keras
import numpy as np

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None


def load_data() -> list[np.ndarray]:
    """Return train images [n, 8, 8, 1], test images, train labels, test labels."""
    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[..., None]
    labels = digits.target.astype("int32")
    return train_test_split(images, labels, test_size=0.25, random_state=0)


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
    """Train for six epochs and print the accuracy on images not trained on."""
    keras.utils.set_random_seed(1)
    train_x, test_x, train_y, test_y = load_data()
    model = build_model()
    model.fit(train_x, train_y, batch_size=64, epochs=6, verbose=2)
    _, evaluated = model.evaluate(test_x, test_y, verbose=0)
    predicted = model.predict(test_x, verbose=0).argmax(axis=1)
    if not np.isclose((predicted == test_y).mean(), evaluated, atol=0.01):
        raise RuntimeError("predict and evaluate disagree")
    print(f"final accuracy {evaluated:.4f}")


if __name__ == "__main__":
    main()
