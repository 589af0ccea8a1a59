"""Train on photographs that ``tf.data`` decodes, crops and flips as they are needed.

    python examples/tf_data_images.py

The two photographs come with scikit-learn. The network learns which of them a crop is
from. The last line says how many times as fast a step is as in float32, reading
included.
"""

import importlib.resources

import keras
import tensorflow as tf

import keras_callbacks
import tf_amp

try:
    PHOTOGRAPHS = importlib.resources.files("sklearn.datasets.images")
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

SIZE, BATCH = 48, 16


def crops(seed: int) -> tf.data.Dataset:
    """Return batches of random crops, and which photograph each is from."""
    names = [str(PHOTOGRAPHS / name) for name in ("china.jpg", "flower.jpg")]

    def crop(
        number: tf.Tensor, example: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        name, label = example
        # The same crops in each run, whichever thread makes them.
        key = (seed, number)
        image = tf.io.decode_jpeg(tf.io.read_file(name), channels=3)
        image = tf.image.stateless_random_crop(image, (SIZE, SIZE, 3), key)
        image = tf.image.stateless_random_flip_left_right(image, key)
        return tf.cast(image, tf.float32) / 255.0, label

    files = tf.data.Dataset.from_tensor_slices((names, [0, 1])).repeat().enumerate()
    return files.map(crop, tf.data.AUTOTUNE).batch(BATCH).prefetch(2)


def build_model() -> keras.Model:
    """Return a small network of separable convolutions."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3))])
    model.add(layers.Conv2D(16, 3, 2, padding="same", use_bias=False))
    for channels, strides in ((32, 1), (64, 2), (128, 2)):
        model.add(layers.DepthwiseConv2D(3, strides, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
        model.add(layers.Conv2D(channels, 1, use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(1))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    accuracy = keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=[accuracy])
    return model


def main() -> None:
    """Train, and print the accuracy on other crops, and times of steps."""
    tf_amp.enable()
    keras.utils.set_random_seed(1)
    model = build_model()
    batches = crops(1)
    # In these steps tf-amp itself tries both ways, where the prediction is close.
    model.fit(batches, steps_per_epoch=60, verbose=0)
    timer = keras_callbacks.StepTimeMonitor(compare=15, batch_size=BATCH)
    model.fit(batches, steps_per_epoch=60, verbose=0, callbacks=[timer])
    _, accuracy = model.evaluate(crops(2), steps=10, verbose=0)
    print(f"final accuracy {accuracy:.4f}")
    print(f"float32 -> tf-amp: {timer.comparison}")


if __name__ == "__main__":
    main()
