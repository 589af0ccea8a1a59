"""Train a small GPT-2 of KerasHub, from random weights, to predict characters.

    python examples/keras_hub_text.py

The text is English prose that comes with Python. The last line says how many times as
fast a step is as in float32.
"""

from pydoc_data.topics import topics

import keras
import numpy as np

import keras_callbacks
import tf_amp

try:
    import keras_hub
except ModuleNotFoundError:
    raise SystemExit("This example needs KerasHub: pip install '.[examples]'") from None

LENGTH, BATCH = 64, 8


def load_rows() -> np.ndarray:
    """Return rows [n, LENGTH + 1] of characters below 128."""
    text = "".join(topics.values()).encode("ascii", "replace")
    codes = np.frombuffer(text, np.uint8).astype("int32")
    return codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)


def build_model() -> keras.Model:
    """Return a GPT-2 of two layers, with scores of each next character."""
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=128,
        num_layers=2,
        num_heads=4,
        hidden_dim=256,
        intermediate_dim=1024,
        max_sequence_length=LENGTH,
        dropout=0.0,
    )
    tokens = keras.Input((LENGTH,), dtype="int32")
    hidden = backbone(
        {"token_ids": tokens, "padding_mask": keras.ops.ones_like(tokens)}
    )
    model = keras.Model(tokens, keras.layers.Dense(128)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    return model


def main() -> None:
    """Train, and print the loss and times of steps."""
    tf_amp.enable()
    keras.utils.set_random_seed(1)
    rows = load_rows()[: 60 * BATCH]
    x, y = rows[:, :-1], rows[:, 1:]
    model = build_model()
    # In these steps tf-amp itself tries both ways, where the prediction is close.
    model.fit(x, y, batch_size=BATCH, verbose=0)
    timer = keras_callbacks.StepTimeMonitor(compare=10)
    history = model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[timer]).history
    print(f"final loss {history['loss'][-1]:.4f}")
    print(f"float32 -> tf-amp: {timer.comparison}")


if __name__ == "__main__":
    main()
