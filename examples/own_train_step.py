"""Train a denoising autoencoder, whose model overrides ``train_step``.

    python examples/own_train_step.py

The last line says how many times as fast a step is as in float32.
"""

import keras
import numpy as np
import tensorflow as tf

import keras_callbacks
import tf_amp

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None


class Denoiser(keras.Model):
    """Learns to take away the noise that each training step adds."""

    def __init__(self) -> None:
        """Make the layers."""
        super().__init__()
        layers = [keras.layers.Dense(1024, "relu") for _ in range(3)]
        self.network = keras.Sequential([*layers, keras.layers.Dense(64, "sigmoid")])

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Return clean images [batch, 64]."""
        return self.network(images)

    def train_step(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """Add noise, and learn to undo it."""
        noisy = images + tf.random.normal(tf.shape(images), 0.0, 0.3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(noisy, training=True) - images) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def main() -> None:
    """Train, and print the error of denoised images and times of steps."""
    tf_amp.enable()
    keras.utils.set_random_seed(1)
    images = (load_digits().data[:1792] / 16).astype("float32")
    model = Denoiser()
    model.compile(keras.optimizers.Adam(1e-3))
    # In these steps tf-amp itself tries both ways, where the prediction is close.
    model.fit(images, batch_size=128, epochs=4, verbose=0)
    timer = keras_callbacks.StepTimeMonitor(compare=10, batch_size=128)
    model.fit(images, batch_size=128, epochs=4, verbose=0, callbacks=[timer])
    noise = np.random.default_rng(1).normal(0.0, 0.3, images.shape).astype("float32")
    cleaned = model.predict(images + noise, verbose=0)
    before, after = np.mean(noise**2), np.mean((cleaned - images) ** 2)
    print(f"mean squared error {before:.4f}, denoised {after:.4f}")
    print(f"float32 -> tf-amp: {timer.comparison}")


if __name__ == "__main__":
    main()
