"""Strategies for several devices of one machine, and how their gradients travel."""

from __future__ import annotations

import gc
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from keras_callbacks.all_reduce import DEFAULT_BUCKET_BYTES, Exchange, FusedAllReduce
from tf_amp._tensorflow_private import install_when_imported, wrapping_unconverted
from tf_amp._tensorflow_private import workers as private
from tf_amp.config.amp_config import checked_any_dtype
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code
from tf_amp.placement.named_devices import checked_devices, short_name

_NAMED = 3


class MirroredStrategy(tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """TensorFlow's own, which knows how its gradients are exchanged."""

    def __init__(self, devices: Sequence[str], exchange: FusedAllReduce | None) -> None:
        """Mirror variables on devices, by names as TensorFlow has them.

        Without an exchange it is TensorFlow's own.
        """
        super().__init__(devices, cross_device_ops=exchange)
        self._exchange = exchange
        _decorate_keras()

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return what is exchanged in 16 bits per step, once a step was traced."""
        return self._exchange.exchanges if self._exchange else ()

    @property
    def is_fused(self) -> bool:
        """Return whether gradients travel in 16 bits."""
        return self._exchange is not None

    def scope(self) -> Any:
        """Return a context in which variables are mirrored."""
        _decorate_keras()
        return super().scope()


def mirrored_strategy(
    devices: Sequence[str] | None = None,
    all_reduce: str = "float32",
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> MirroredStrategy:
    """Return a strategy that trains on several devices of this machine.

        strategy = keras_callbacks.mirrored_strategy(all_reduce="bfloat16")
        with strategy.scope():
            model = ...

    Args:
      devices: such as "GPU:0", "/device:CPU:1"; None for all GPUs that TensorFlow sees,
        or all its CPU devices where there is none.
      all_reduce: what gradients travel in. "float32" leaves the exchange to TensorFlow,
        "bfloat16" and "float16" halve the bytes; `all_reduce.encoding` says what
        bounds their error. Sums are in float32 with each.
      bucket_bytes: of gradients that travel together, in 16 bits; not looked at for
        "float32".

    Raises:
      ConfigError: a device is not there or is named twice, or another argument is none
        of those allowed.
    """
    all_reduce = checked_any_dtype(all_reduce, "all_reduce")
    check_count("mirrored_strategy", "bucket_bytes", bucket_bytes)
    if devices is None:
        present = [device.name for device in tf.config.list_logical_devices()]
        gpus = [name for name in present if short_name(name).startswith("GPU")]
        cpus = [name for name in present if short_name(name).startswith("CPU")]
        names = gpus or cpus
    else:
        given = [devices] if isinstance(devices, str) else list(map(str, devices))
        if not given:
            raise ConfigError(
                "devices: received an empty list; None stands for all there are."
            )
        names = list(checked_devices(given))
    exchange = None
    if len(names) == 1:
        logging.warning("One device, %s: there is nothing to reduce.", names[0])
    elif all_reduce != "float32" and private.can_mirror():
        exchange = FusedAllReduce(all_reduce, bucket_bytes)
    _note_earlier_variables()
    return MirroredStrategy(names, exchange)


def _decorate_keras() -> None:
    """Let Keras 3's optimizers, where there are any, say what gradients are for."""
    if importlib.util.find_spec("keras") is None:
        return
    importlib.import_module("keras")
    install_when_imported(private.KERAS_ALL_REDUCE, _name_variables)


@wrapping_unconverted
def _name_variables(
    reduce: Callable[..., Any], optimizer: Any, grads_and_vars: Any
) -> Any:
    """Do Keras 3's reduction of gradients, so that it goes to their variables."""
    pairs = list(grads_and_vars)
    strategy = tf.distribute.get_strategy()
    is_replica = not tf.distribute.in_cross_replica_context()
    if not (is_replica and isinstance(strategy, MirroredStrategy)):
        return reduce(optimizer, pairs)
    for _, variable in pairs:
        if not private.is_replicated(variable):
            raise ConfigError(
                f"The variable {variable.name} {variable.shape} was not made under "
                "the strategy, so that its replicas cannot be kept alike; create "
                "the model and the optimizer within `with strategy.scope():`."
            )
    given = [pair for pair in pairs if pair[0] is not None]
    if not given or not strategy.is_fused:
        return reduce(optimizer, pairs)
    # Where XLA compiles replicas do not meet.
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        logging.log_first_n(
            logging.WARNING,
            "In functions compiled by XLA gradients are exchanged in float32, as "
            "TensorFlow does it; compile(jit_compile=False) exchanges them in 16 bits.",
            1,
        )
        return reduce(optimizer, pairs)
    context = tf.distribute.get_replica_context()
    reduced = iter(context.merge_call(_reduce_to_variables, args=(given,)))
    return [(None if g is None else next(reduced), v) for g, v in pairs]


def _reduce_to_variables(strategy: Any, pairs: Sequence[tuple[Any, Any]]) -> Any:
    return strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, pairs)


def _note_earlier_variables() -> None:
    """Warn of models made before the strategy, which it does not mirror."""
    # A model that nobody holds any more is not one to warn of.
    gc.collect()
    # Not isinstance: asking a proxy for its class may load what it stands for.
    variables = (v for v in gc.get_objects() if issubclass(type(v), tf.Variable))
    # Those of metrics and the like are scalars.
    weights = (v for v in variables if v.trainable and v.shape.rank != 0)
    earlier = [v for v in weights if not private.is_replicated(v)]
    if not earlier:
        return
    names = ", ".join(f"{v.name} {tuple(v.shape)}" for v in earlier[:_NAMED])
    more = f" and {len(earlier) - _NAMED} more" if len(earlier) > _NAMED else ""
    Code.EARLIER_VARIABLES.warn(
        "Variables were made before the strategy: %s%s. They stay on one device; a "
        "model and its optimizer are to be made within `with strategy.scope():`.",
        names,
        more,
    )
