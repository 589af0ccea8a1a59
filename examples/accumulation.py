"""Add up the gradients of three batches before each update, with an option of Keras.

    python examples/accumulation.py

The last line says how many times as fast a step is as in float32.
"""

import keras
import numpy as np

import keras_callbacks
import tf_amp

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None


def build_model() -> keras.Model:
    """Return a network of separable convolutions for images [batch, 16, 16, 1]."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((16, 16, 1))])
    for channels, strides in ((32, 1), (64, 2), (128, 2)):
        model.add(layers.Conv2D(channels, 1, use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
        model.add(layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dense(10))
    model.compile(
        keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Train, and print the accuracy on images not trained on, and times of steps."""
    tf_amp.enable()
    keras.utils.set_random_seed(1)
    digits = load_digits()
    images = np.kron(digits.images / 16, np.ones((2, 2)))[..., None].astype("float32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target, test_size=0.25, random_state=0
    )
    model = build_model()
    # In these steps tf-amp itself tries both ways, where the prediction is close.
    model.fit(train_x, train_y, batch_size=32, epochs=5, verbose=0)
    timer = keras_callbacks.StepTimeMonitor(compare=15)
    model.fit(train_x, train_y, batch_size=32, verbose=0, callbacks=[timer])
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    print(f"final accuracy {accuracy:.4f}")
    print(f"float32 -> tf-amp: {timer.comparison}")


if __name__ == "__main__":
    main()
