"""Fine-tune an image network: train it on the digits 0 to 4, then on 5 to 9.

    python examples/fine_tuning.py

The last line says how many times as fast a step is as in float32.
"""

import keras
import numpy as np

import keras_callbacks
import tf_amp

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

layers = keras.layers


def build_body() -> keras.Model:
    """Return three convolutions for images [batch, 16, 16, 1]."""
    body = keras.Sequential([keras.Input((16, 16, 1))])
    for channels, strides in ((32, 1), (64, 2), (128, 2)):
        conv = layers.Conv2D(channels, 3, strides, padding="same", use_bias=False)
        body.add(conv)
        body.add(layers.BatchNormalization(momentum=0.9))
        body.add(layers.ReLU())
    body.add(layers.GlobalMaxPooling2D())
    return body


def compiled(model: keras.Model, rate: float) -> keras.Model:
    """Return the model with a training function made anew."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train, fine-tune, and print accuracy and times of steps."""
    tf_amp.enable()
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images = np.kron(digits.images / 16, np.ones((2, 2)))[..., None].astype("float32")
    low, high = digits.target < 5, digits.target >= 5
    x, y = images[high], digits.target[high] - 5

    body = build_body()
    first = compiled(keras.Sequential([body, layers.Dense(5)]), 2e-3)
    first.fit(images[low], digits.target[low], batch_size=64, epochs=6, verbose=0)

    body.trainable = False
    second = compiled(keras.Sequential([body, layers.Dense(5)]), 1e-2)
    second.fit(x[:640], y[:640], batch_size=64, epochs=4, verbose=0)

    body.trainable = True
    compiled(second, 1e-3)
    # In these steps tf-amp itself tries both ways, where the prediction is close.
    second.fit(x[:640], y[:640], batch_size=64, epochs=4, verbose=0)
    timer = keras_callbacks.StepTimeMonitor(compare=10)
    tuning = {"batch_size": 64, "epochs": 4, "verbose": 0, "callbacks": [timer]}
    second.fit(x[:640], y[:640], **tuning)
    _, accuracy = second.evaluate(x[640:], y[640:], verbose=0)
    print(f"final accuracy {accuracy:.4f}")
    print(f"float32 -> tf-amp: {timer.comparison}")


if __name__ == "__main__":
    main()
