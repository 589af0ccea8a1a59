"""Train a wide block-sparse network and a dense one of as many parameters, on digits.

    python examples/block_sparse.py

The sparse one has more than twice as many units in each hidden layer. Both run as they
are, or in mixed precision: `TF_ENABLE_AUTO_MIXED_PRECISION=1`.
"""

import math

import keras
import numpy as np

from tf_amp.block_sparse import BlockSparseDense, butterfly_layout

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

SIZE = 16
UNITS = 512


def sparse_model() -> keras.Model:
    """Return two hidden layers of a butterfly of blocks, after a dense one."""
    blocks = UNITS // SIZE
    layout = butterfly_layout((blocks, blocks))
    hidden = [
        BlockSparseDense(UNITS, SIZE, layout, activation="relu") for _ in range(2)
    ]
    first = BlockSparseDense(UNITS, SIZE, density=0.5, activation="relu")
    return keras.Sequential(
        [keras.Input((64,)), first, *hidden, keras.layers.Dense(10)]
    )


def dense_model(parameters: int) -> keras.Model:
    """Return three hidden layers with about so many parameters."""
    # 2 n^2 + (64 + 10 + 3) n + 10 parameters for n units.
    units = round((math.sqrt(77**2 + 8 * (parameters - 10)) - 77) / 4)
    hidden = [keras.layers.Dense(units, activation="relu") for _ in range(3)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])


def main() -> None:
    """Train both alike and print parameters and accuracies."""
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        (digits.data / 16.0).astype("float32"), digits.target, random_state=0
    )
    keras.utils.set_random_seed(1)
    sparse = sparse_model()
    models = {"dense": dense_model(sparse.count_params()), "block-sparse": sparse}
    for name, model in models.items():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.002), loss, jit_compile=False)
        model.fit(train_x, train_y, epochs=12, batch_size=64, verbose=0)
        predicted = np.argmax(model.predict(test_x, verbose=0), axis=1)
        accuracy = np.mean(predicted == test_y)
        width = model.layers[0].units
        print(f"{name}: {width} units, {model.count_params()} parameters")
        print(f"final accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
