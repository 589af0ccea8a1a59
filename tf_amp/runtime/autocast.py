"""The name under which those look for a scope who know it from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tf_amp.errors import ConfigError
from tf_amp.runtime.scope import Scope, mixed_precision_scope

_DEVICE_TYPES = ("cpu", "cuda", "gpu", "tpu", "mps", "xpu", "hpu")


def autocast(
    dtype: Any = None,
    *,
    enabled: bool = True,
    loss_scale: Any = None,
    opt_level: str | None = None,
    exclude: Iterable[Any] = (),
    device_type: None = None,
) -> Scope:
    """Switch rewriting and loss scaling on for what is traced inside.

    This is `mixed_precision_scope`. It differs from `torch.autocast`: what counts is
    where a function is traced, not where it is called, and operations outside of
    functions stay as they are. There is no device type, since each operation gets what
    suits the device it is on. Gradients may be taken inside, and losses are scaled
    without a `GradScaler`. Weights and results stay float32.

        with tf_amp.autocast("bfloat16", enabled=use_amp):
            model.fit(x, y)

    Args:
      dtype: "bfloat16", "float16", or `tf.bfloat16`; None lets each device choose.
      enabled: False leaves alone what is made inside.
      loss_scale: as for `mixed_precision_scope`.
      opt_level: "O0" to "O3".
      exclude: regular expressions and Keras layers that stay float32.
      device_type: None; there for an error that says so.

    Raises:
      ConfigError: an argument is none of those allowed.
    """
    given = device_type if device_type is not None else dtype
    if device_type is not None or str(given).partition(":")[0] in _DEVICE_TYPES:
        raise ConfigError(
            f"autocast: received the device type {given!r}; each operation gets what "
            "suits the device it is on, so leave it out: autocast(dtype=...)."
        )
    return mixed_precision_scope(
        dtype,
        loss_scale=loss_scale,
        opt_level=opt_level,
        exclude=exclude,
        enabled=enabled,
    )
