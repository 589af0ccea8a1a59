"""A dense layer of Keras whose kernel is block-sparse."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf

from tf_amp.block_sparse.layout import BlockLayout, random_layout
from tf_amp.block_sparse.product import block_sparse_matmul, check_width
from tf_amp.errors import ConfigError


@tf.keras.utils.register_keras_serializable("tf_amp")
class BlockSparseDense(tf.keras.layers.Layer):  # type: ignore[misc]
    """`activation(x @ kernel + bias)` with a kernel that is zero outside of its blocks.

    Of [..., features] it makes [..., units]. What a layer is saved with holds its
    layout, so that it is loaded with the same one.

    Attributes:
      layout: where the blocks are, [features / block_size, units / block_size] blocks;
        None until the layer is built, if it was given by its density.
      kernel: the blocks [blocks, block_size, block_size], in the layout's order.
      bias: [units], or None.
    """

    def __init__(
        self,
        units: int,
        block_size: int = 32,
        layout: BlockLayout | None = None,
        *,
        density: float | None = None,
        seed: int | None = None,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Take the options; blocks are made once the number of features is known.

        Args:
          units: outputs, a multiple of `block_size`.
          block_size: inputs and outputs of one block.
          layout: where the blocks are; or else
          density: share of the kernel in blocks that `random_layout` places, above 0
            and up to 1.
          seed: of these places; by default another one for each layer, which
            `keras.utils.set_random_seed` determines.
          activation: as of `keras.layers.Dense`.
          use_bias: whether there is a bias.
          kernel_initializer: called for [blocks, block_size, block_size]; by default
            uniform as by Glorot & Bengio (2010), counting only the inputs that an
            output has and the outputs that an input has, on average.
          bias_initializer: of [units].
          kernel_regularizer: of the blocks.
          **kwargs: those of every layer.

        Raises:
          ConfigError: layout and density are both given or both missing, units are no
            multiple of the block size, or not those of the layout; the message names
            the column. When built: features are not those of the layout; it names the
            row.
        """
        super().__init__(**kwargs)
        if (layout is None) == (density is None):
            raise ConfigError(
                f"layout, density: received {layout} and {density}; give one of them."
            )
        self.units, self.block_size, self.density = units, block_size, density
        # What is loaded has the configuration of one.
        self.layout = BlockLayout(**layout) if isinstance(layout, dict) else layout
        self.seed = random.randrange(1 << 31) if seed is None else seed
        self.activation = tf.keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = tf.keras.initializers.get(kernel_initializer)
        self.bias_initializer = tf.keras.initializers.get(bias_initializer)
        self.kernel_regularizer = tf.keras.regularizers.get(kernel_regularizer)
        self.bias = None
        _check_size("units", units, block_size)
        if self.layout and self.layout.shape[1] * block_size != units:
            columns = self.layout.shape[1]
            raise ConfigError(
                f"units: received {units}; {columns} columns of blocks of size "
                f"{block_size} are {columns * block_size} units: column "
                f"{min(units // block_size, columns)} does not fit."
            )

    def build(self, input_shape: Any) -> None:
        """Make the blocks and the bias for inputs of a shape."""
        features = int(input_shape[-1])
        if self.layout is None and self.density is not None:
            _check_size("inputs", features, self.block_size)
            shape = (features // self.block_size, self.units // self.block_size)
            self.layout = random_layout(shape, self.density, seed=self.seed)
        layout = self._layout()
        check_width(features, self.block_size, layout.shape[0])
        fans = (self.block_size * len(layout) / side for side in layout.shape)
        limit = (6.0 / sum(fans)) ** 0.5
        glorot = tf.keras.initializers.RandomUniform(-limit, limit)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(len(layout), self.block_size, self.block_size),
            initializer=self.kernel_initializer or glorot,
            regularizer=self.kernel_regularizer,
        )
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias", shape=(self.units,), initializer=self.bias_initializer
            )
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Return [..., units] of [..., features]."""
        outputs = block_sparse_matmul(inputs, self.kernel, self._layout())
        if self.bias is not None:
            outputs = outputs + self.bias
        return self.activation(outputs)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the shape of what is made of inputs of a shape."""
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        """Return the options, with the layout if there is one already."""
        made = self.layout
        return {
            **super().get_config(),
            "units": self.units,
            "block_size": self.block_size,
            "layout": made
            and {
                "shape": list(made.shape),
                "rows": made.rows.tolist(),
                "columns": made.columns.tolist(),
            },
            "density": None if made else self.density,
            "seed": self.seed,
            "activation": tf.keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": self.kernel_initializer
            and tf.keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": tf.keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": tf.keras.regularizers.serialize(
                self.kernel_regularizer
            ),
        }

    def _layout(self) -> BlockLayout:
        assert self.layout is not None, "there is one once the layer is built"
        return self.layout


def _check_size(name: str, count: int, block_size: int) -> None:
    """Raise unless a number of inputs (rows) or units (columns) is whole blocks."""
    if min(count, block_size) > 0 and count % block_size == 0:
        return
    if block_size < 1 or count < 1:
        raise ConfigError(
            f"{name}, block_size: received {count} and {block_size}; allowed are "
            "positive integers."
        )
    line = "column" if name == "units" else "row"
    whole, rest = divmod(count, block_size)
    raise ConfigError(
        f"{name}: received {count}, no multiple of the block size {block_size}: {line} "
        f"{whole} of blocks would have {rest} of them."
    )
