"""Train in float16 with a loss scale of one's own, and print what became of it.

    python examples/own_loss_scale.py

A loss scale is a specification and three functions of its state: `scale`, `unscale` and
`adjust`. What is not written here, `LossScale` does. Powers of two round nothing.
"""

import numpy as np
import tensorflow as tf

import tf_amp

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None


class Patient(tf_amp.LossScale):
    """Quarter at each overflow, and double after each hundred finite steps since."""

    def initial_state(self):
        """Begin far too high."""
        return {"scale": 2.0**24}

    def adjust(self, state, seen):
        """Follow the gradients; the state is scalars by name."""
        if not seen.finite:
            return {"scale": tf.maximum(state["scale"] / 4, 1.0)}
        is_time = state["good_steps"] % 100 == 99
        return {"scale": state["scale"] * tf.where(is_time, 2.0, 1.0)}


def main() -> None:
    """Train a network with two layers and print its accuracy."""
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        (digits.data / 16.0).astype("float32"), digits.target, random_state=0
    )
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(10)]
    model = tf.keras.Sequential([tf.keras.Input((64,)), *layers])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.003), loss, jit_compile=False)

    mine = Patient()
    with tf_amp.mixed_precision_scope(loss_scale=mine, dtype="float16", opt_level="O2"):
        model.fit(train_x, train_y, epochs=15, batch_size=64, verbose=0)
    state = tf_amp.loss_scale_state(mine)
    print(f"scale {state.scale:.0f}, {state.skipped_steps} steps skipped")
    predicted = np.argmax(model.predict(test_x, verbose=0), axis=1)
    print(f"final accuracy {np.mean(predicted == test_y):.4f}")


if __name__ == "__main__":
    main()
