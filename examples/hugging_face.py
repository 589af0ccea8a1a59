"""Train a small DistilBERT of Hugging Face, from scratch, to tell prose from code.

    python examples/hugging_face.py

Prose and code come with Python. The TensorFlow classes of ``transformers`` exist below
version 5, and use Keras 2 (``tf_keras``). The last line says how many times as fast a
step is as in float32.
"""

import inspect
import os
import typing
from pydoc_data.topics import topics

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np

import keras_callbacks
import tf_amp

try:
    import tf_keras
    from transformers import DistilBertConfig, TFDistilBertForSequenceClassification
except ImportError:
    needed = "tf_keras, and transformers below 5: pip install '.[examples]'"
    raise SystemExit(f"This example needs {needed}") from None

LENGTH, BATCH, COUNT = 64, 8, 512


def load_rows() -> tuple[np.ndarray, np.ndarray]:
    """Return characters [n, LENGTH], shuffled, and 1 where they are of code."""
    texts = "".join(topics.values()), inspect.getsource(typing)
    codes = [np.frombuffer(text.encode("ascii", "replace"), np.uint8) for text in texts]
    rows = [each[: COUNT * LENGTH].reshape(COUNT, LENGTH) for each in codes]
    order = np.random.default_rng(1).permutation(2 * COUNT)
    labels = np.repeat([0, 1], COUNT)
    return np.concatenate(rows).astype("int32")[order], labels[order]


def build_model() -> tf_keras.Model:
    """Return a DistilBERT of two layers, compiled."""
    sizes = {"dim": 256, "hidden_dim": 1024, "n_layers": 2, "n_heads": 4}
    config = DistilBertConfig(
        vocab_size=128, max_position_embeddings=LENGTH, num_labels=2, **sizes
    )
    model = TFDistilBertForSequenceClassification(config)
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.Adam(3e-4), loss, metrics=["accuracy"])
    return model


def main() -> None:
    """Train, and print the accuracy on rows not trained on, and times of steps."""
    tf_amp.enable()
    tf_keras.utils.set_random_seed(1)
    x, y = load_rows()
    model = build_model()
    # In these steps tf-amp itself tries both ways, where the prediction is close.
    model.fit(x[:480], y[:480], batch_size=BATCH, verbose=0)
    timer = keras_callbacks.StepTimeMonitor(compare=10)
    model.fit(x[480:960], y[480:960], batch_size=BATCH, verbose=0, callbacks=[timer])
    _, accuracy = model.evaluate(x[960:], y[960:], verbose=0)
    print(f"final accuracy {accuracy:.4f}")
    print(f"float32 -> tf-amp: {timer.comparison}")


if __name__ == "__main__":
    main()
