"""Three programs for `tf-amp bench`: a script, a function, and a SavedModel.

tf-amp bench examples/benched.py --methods all --batches 16,64
tf-amp bench examples.benched:unet --methods all --batches 4,16
python -m examples.benched export mobilenet
tf-amp bench mobilenet --methods all --batches 4,16
"""

import os
import sys

import keras
import numpy as np
from keras import layers

_STEPS = 20


def mixer() -> keras.Model:
    """Return two blocks that mix patches of images [32, 32, 3], then channels."""
    image = keras.Input((32, 32, 3))
    patches = layers.Conv2D(256, 4, strides=4)(image)
    tokens = layers.Reshape((64, 256))(patches)
    for _ in range(2):
        mixed = layers.Permute((2, 1))(layers.LayerNormalization()(tokens))
        mixed = layers.Dense(64)(layers.Dense(128, "gelu")(mixed))
        tokens = layers.Add()([tokens, layers.Permute((2, 1))(mixed)])
        wide = layers.Dense(1024, "gelu")(layers.LayerNormalization()(tokens))
        tokens = layers.Add()([tokens, layers.Dense(256)(wide)])
    logits = layers.Dense(10)(layers.GlobalAveragePooling1D()(tokens))
    model = keras.Model(image, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-3), loss)
    return model


def unet(batch: int) -> tuple[keras.Model, np.ndarray, np.ndarray]:
    """Return a U-Net of two levels, and images and masks [batch, 64, 64, 1]."""
    keras.utils.set_random_seed(1)
    image = x = keras.Input((64, 64, 1))
    skipped = []
    for width in (32, 64):
        x = _convolutions(x, width)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = _convolutions(x, 128)
    for width, beside in zip((64, 32), reversed(skipped), strict=True):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = _convolutions(layers.Concatenate()([x, beside]), width)
    model = keras.Model(image, layers.Conv2D(1, 1)(x))
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    images = np.random.default_rng(1).normal(size=(batch, 64, 64, 1))
    return model, images.astype("float32"), (images > 0.0).astype("float32")


def _convolutions(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
    for _ in range(2):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def main(arguments: list[str]) -> None:
    """Train the mixer, or export a MobileNetV2 without training it."""
    keras.utils.set_random_seed(1)
    if arguments[:1] == ["export"]:
        shape = (96, 96, 3)
        network = keras.applications.MobileNetV2(input_shape=shape, weights=None)
        network.export(arguments[1], verbose=False)
        return
    batch = int(os.environ.get("TF_AMP_BENCH_BATCH", "16"))
    random = np.random.default_rng(1)
    images = random.normal(size=(batch * _STEPS, 32, 32, 3)).astype("float32")
    labels = random.integers(10, size=len(images))
    mixer().fit(images, labels, batch_size=batch, verbose=2)


if __name__ == "__main__":
    main(sys.argv[1:])
