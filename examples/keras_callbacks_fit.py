"""Train a Keras 3 network on digits, in mixed precision for this one ``fit``.

    python examples/keras_callbacks_fit.py [FOLDER]

FOLDER, by default ``keras_callbacks_run``, gets the best weights and, beside them, the
report of what was computed in which type. With ``TF_USE_LEGACY_KERAS=1`` the same runs
on tf_keras.
"""

import pathlib
import sys

import tensorflow as tf

import keras_callbacks

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

keras = tf.keras


def load_data() -> list:
    """Return train images [n, 64], test images, train labels, test labels."""
    digits = load_digits()
    images = (digits.data / 16.0).astype("float32")
    labels = digits.target.astype("int32")
    return train_test_split(images, labels, test_size=0.25, random_state=0)


def build_model():
    """Return three dense layers, compiled as for float32."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((64,)),
            layers.Dense(1024, activation="relu", name="first"),
            layers.Dense(1024, activation="relu", name="second"),
            layers.Dense(10, name="logits"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    """Train for eight epochs with all callbacks, and print the accuracy."""
    folder = pathlib.Path(sys.argv[1] if sys.argv[1:] else "keras_callbacks_run")
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    train_x, test_x, train_y, test_y = load_data()
    model = build_model()
    history = model.fit(
        train_x,
        train_y,
        batch_size=128,
        epochs=8,
        verbose=2,
        validation_data=(test_x, test_y),
        callbacks=[
            keras.callbacks.ModelCheckpoint(
                str(folder / "best.weights.h5"),
                monitor="val_accuracy",
                mode="max",
                save_best_only=True,
                save_weights_only=True,
            ),
            keras_callbacks.AutoMixedPrecision(),
            keras_callbacks.LossScaleMonitor(),
            keras_callbacks.StepTimeMonitor(compare=10),
            keras_callbacks.GradientHealthMonitor(every=10),
            keras_callbacks.PrecisionReport(),
        ],
    ).history
    print(f"loss scale {history['loss_scale'][-1]:g}")
    print(f"steps skipped {history['skipped_steps'][-1]}")
    model.load_weights(str(folder / "best.weights.h5"))
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    print(f"final accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
