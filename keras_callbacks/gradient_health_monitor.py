"""Which layers' gradients leave the range of the 16-bit type.

Figures are taken where an optimizer is about to apply gradients: they are computed
within the traced step and left in one small variable, of which every replica has its
own. A step that computes in 16 bits would show zeros in the place of what it has lost,
so the step is to be traced in float32.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_callbacks import step_functions
from keras_callbacks.callback import Logs, Monitor, check_one_of, never_raising
from keras_callbacks.loss_scale_monitor import OwnScale, scales_losses
from keras_callbacks.summaries import ROWS
from tf_amp._tensorflow_private import unconverted
from tf_amp.config.amp_config import LOW_DTYPES, LowDtype
from tf_amp.config.devices import loss_scale_for, low_dtype_of
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.report.display import markdown_table
from tf_amp.runtime import enabling, model_scopes, switch
from tf_amp.runtime.scope import float32_scope
from tf_amp.tracing.stack import taking_all
from tf_amp.tracing.stamps import current_config
from tf_amp.training.scale_state import find_state

# What is rounded to 0, as float32, and the largest number. bfloat16 has subnormal
# numbers that most devices take for 0.
_RANGES = {"float16": (2.0**-25, 65504.0), "bfloat16": (2.0**-126, 3.3895314e38)}
_EXPONENTS = 256
_COLUMNS = ("largest", "underflows", "overflows", "nonzero", "size")


@dataclasses.dataclass(frozen=True)
class GradientHealth:
    """The gradients of one layer in the steps looked at.

    Attributes:
      largest: largest absolute value, in true units; infinite or NaN as it comes.
      underflow_share: of the values that are not 0, the share that the loss scale does
        not lift above the smallest number of the 16-bit type.
      overflow_share: share of all values above the largest number of that type, or NaN.
    """

    largest: float
    underflow_share: float
    overflow_share: float


class GradientStatistics:
    """Watches the optimizers of a model while its step is traced."""

    def __init__(
        self, model: Any, low_dtype: str, failed: Callable[[str], None]
    ) -> None:
        """Make the variables that figures are left in, for a model that has been built.

        `failed` is called with the error that figures end with, in words.
        """
        self._smallest, self._largest = _RANGES[low_dtype]
        self._failed = failed
        self._strategy = model.distribute_strategy
        # Those of a custom step are attributes of the model, too.
        found = [model.optimizer, *vars(model).values()]
        applying = {
            id(each): each for each in found if hasattr(each, "apply_gradients")
        }
        self._optimizers = list(applying.values())
        self._names = [_name_of(v) for v in model.trainable_variables]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._figures = self._variable(len(_COLUMNS))
        self._exponents = self._variable(_EXPONENTS)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Take figures of what the optimizers apply in what is traced inside."""
        with contextlib.ExitStack() as stack:
            for optimizer in self._optimizers:
                # All gradients go through it: Keras 3 has `apply` beneath the other.
                name = "apply" if hasattr(optimizer, "apply") else "apply_gradients"
                setattr(optimizer, name, self._noting(optimizer, name))
                stack.callback(delattr, optimizer, name)
            yield

    def read(self) -> dict[str, GradientHealth]:
        """Return the figures by layer, and begin again; waits for the device."""
        health = {}
        for name, figures in self._taken(self._figures).items():
            _, underflows, overflows, nonzero, size = figures.sum(axis=0)
            # Without a gradient there is nothing to tell.
            if size:
                health[name] = GradientHealth(
                    float(figures[:, 0].max()),
                    float(underflows / max(nonzero, 1.0)),
                    float(overflows / size),
                )
        return health

    def read_exponents(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return by layer how often each exponent of float32 occurs, and begin again.

        Values that are 0 do not count; in arrays [256], of exponents -127 to 128.
        """
        found = self._taken(self._exponents)
        return {name: counts.sum(axis=0) for name, counts in found.items()}

    def _variable(self, columns: int) -> Any:
        with self._strategy.scope():
            return tf.Variable(
                tf.zeros((len(self._names), columns)),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

    def _taken(self, variable: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Return the rows of each layer's weights on all replicas, and begin again."""
        replicas = self._strategy.experimental_local_results(variable)
        rows = np.stack([replica.numpy() for replica in replicas])
        for replica in replicas:
            replica.assign(tf.zeros_like(replica))
        by_layer: dict[str, list[np.ndarray[Any, Any]]] = {}
        for place, name in enumerate(self._names):
            layer = name.rpartition("/")[0] or name
            by_layer.setdefault(layer, []).append(rows[:, place])
        return {name: np.concatenate(each) for name, each in by_layer.items()}

    def _noting(self, optimizer: Any, name: str) -> Callable[..., Any]:
        apply = getattr(optimizer, name)

        def note_and_apply(gradients: Any, *args: Any, **kwargs: Any) -> Any:
            gradients = pairs = list(gradients)
            if name == "apply":
                # By default all that the optimizer knows.
                known = getattr(optimizer, "_trainable_variables", ())
                given = kwargs.get("trainable_variables") or next(iter(args), None)
                variables = known if given is None else given
                pairs = list(zip(gradients, variables, strict=False))
            # Training is worth more than its figures, whatever the reason.
            try:
                with tf.name_scope("tf_amp_gradient_health"), taking_all():
                    self._accumulate(pairs, *_scales_of(optimizer))
            except Exception as error:
                self._failed(f"{type(error).__name__}: {error}")
            return apply(gradients, *args, **kwargs)

        return unconverted(note_and_apply)

    def _accumulate(
        self, pairs: Sequence[tuple[Any, Any]], scale: Any, divisor: Any
    ) -> None:
        rows = [tf.zeros(len(_COLUMNS))] * len(self._names)
        exponents = [tf.zeros(_EXPONENTS)] * len(self._names)
        for gradient, variable in pairs:
            place = self._places.get(_name_of(variable))
            if gradient is None or place is None:
                continue
            is_sparse = isinstance(gradient, tf.IndexedSlices)
            values = gradient.values if is_sparse else gradient
            # In true units.
            size = tf.abs(tf.cast(values, tf.float32)) / divisor
            rows[place] = self._row(size, scale)
            # How often each exponent of float32 occurs among positive values.
            flat = tf.reshape(size, [-1])
            exponent = tf.bitwise.right_shift(tf.bitcast(flat, tf.int32), 23)
            ones = tf.cast(flat > 0, tf.float32)
            exponents[place] = tf.math.unsorted_segment_sum(ones, exponent, _EXPONENTS)
        self._exponents.assign_add(tf.stack(exponents))
        now, before = tf.stack(rows), tf.convert_to_tensor(self._figures)
        largest = tf.maximum(before[:, :1], now[:, :1])
        self._figures.assign(tf.concat([largest, before[:, 1:] + now[:, 1:]], axis=1))

    def _row(self, size: Any, scale: Any) -> Any:
        """Return the columns of one gradient, whose absolute values these are."""
        scaled = size * scale
        nonzero = scaled > 0
        counts = (
            tf.logical_and(nonzero, scaled <= self._smallest),
            # Grappler takes `not <=` for `>`, which NaN is not.
            tf.logical_or(scaled > self._largest, tf.math.is_nan(scaled)),
            nonzero,
            tf.ones_like(nonzero),
        )
        counted = [tf.math.count_nonzero(count, dtype=tf.float32) for count in counts]
        return tf.stack([tf.reduce_max(size), *counted])


def _scales_of(optimizer: Any) -> tuple[Any, Any]:
    """Return what the backward pass is scaled by, and what is still on gradients."""
    one = tf.constant(1.0)
    if scales_losses(optimizer):
        own = OwnScale.of(optimizer)
        scale = tf.convert_to_tensor(own.scale, tf.float32)
        return scale, tf.convert_to_tensor(own.left_on_gradients, tf.float32)
    loss_scale = loss_scale_for(current_config())
    state = find_state(loss_scale) if loss_scale.scales else None
    if state is None or state.in_graph:
        return one, one
    return state.unpacked(state.read())["scale"], one


def _name_of(variable: Any) -> str:
    path = getattr(variable, "path", None)
    return str(path or variable.name.partition(":")[0])


# What stands in the logs: its name, and where a layer has it.
_LOGGED = {
    "gradient_max": "largest",
    "gradient_underflow": "underflow_share",
    "gradient_overflow": "overflow_share",
}


def _table(health: Mapping[str, GradientHealth]) -> str:
    """Return a table of the layers that lose most, in Markdown."""

    def lost(layer: str) -> float:
        # NaN counts as the largest.
        share = health[layer].underflow_share + health[layer].overflow_share
        return share if math.isfinite(share) else math.inf

    titles = ("layer", "largest gradient", "underflow", "overflow")
    rows = [
        (
            layer,
            f"{health[layer].largest:.3g}",
            f"{health[layer].underflow_share:.2%}",
            f"{health[layer].overflow_share:.2%}",
        )
        for layer in sorted(health, key=lost, reverse=True)[:ROWS]
    ]
    return markdown_table(titles, rows, titles[1:])


class GradientHealthMonitor(Monitor):
    """Writes what the 16-bit type would lose of the gradients into the logs.

    These are `gradient_max`, the largest |gradient|, and of the worst layer the shares
    `gradient_underflow` and `gradient_overflow`, at the loss scale in force. `health`
    has them for each layer, and so has TensorBoard, with histograms of the exponents of
    two in each layer's gradients, in true units. Every so many steps a second
    training function runs, in float32, that takes the figures; all other steps are as
    they are without this callback.

    Attributes:
      health: the gradients of the latest epoch that had figures, by layer.
      exponents: by layer, how often each exponent of float32 has occurred in this `fit`
        in gradients that are not 0; arrays [256], of exponents -127 to 128.
    """

    def __init__(self, every: int = 100, *, dtype: LowDtype | None = None) -> None:
        """Say how often gradients are looked at.

        Args:
          every: calls of the training function between two looks, from 1 on; the
            second call of a `fit` is always looked at.
          dtype: "bfloat16" or "float16"; None: the type that `fit` computes in, or
            would on this device.

        Raises:
          ConfigError: an argument is none of those allowed.
        """
        self._every = check_count("GradientHealthMonitor", "every", every)
        check_one_of("GradientHealthMonitor", "dtype", dtype, (None, *LOW_DTYPES))
        self._dtype = dtype
        self.begin()

    def begin(self) -> None:
        """Forget an earlier run."""
        self.health: Mapping[str, GradientHealth] = {}
        self.exponents: dict[str, np.ndarray[Any, Any]] = {}
        self._calls, self._is_placed = 0, False
        self._statistics: GradientStatistics | None = None
        self._observed: step_functions.StepFunction | None = None

    @never_raising
    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Put a second training function beside the first one."""
        plain = step_functions.current(self.model, "train")
        if self._is_placed or plain is None:
            return
        self._is_placed = True

        def call_by_turns(*args: Any) -> Any:
            call, self._calls = self._calls, self._calls + 1
            # The first call builds the model.
            if self.is_off or call == 0 or (call != 1 and call % self._every):
                return plain(*args)
            self._make_observed()
            if self._observed is None or self._statistics is None:
                return plain(*args)
            # The plan of this function is kept separate from that of training.
            watch = getattr(self.sibling("AutoMixedPrecision"), "watch", None)
            if watch is not None:
                watch.role = "gradients"
            with self._statistics.watching():
                return self._observed(*args)

        step_functions.put(
            self.model, "train", step_functions.wrapping(call_by_turns, plain)
        )

    @never_raising
    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Read the figures once, and write them into the logs."""
        read = self._statistics.read() if self._statistics else {}
        self.health = read or self.health
        if not self.health and self._calls > 1:
            self.switch_off(
                "no gradient of the model's variables was applied by an optimizer that "
                "is an attribute of the model"
            )
        if not self.health:
            return
        if logs is not None:
            layers = self.health.values()
            for name, field in _LOGGED.items():
                # Of several, NaN counts as the largest.
                worst = np.max([getattr(each, field) for each in layers])
                logs[name] = float(worst)
        by_layer = {
            f"{name}/{layer}": getattr(each, field)
            for layer, each in read.items()
            for name, field in _LOGGED.items()
        }
        self._summaries.write(by_layer, epoch)
        if read:
            self._summaries.write_text("gradients", _table(read), epoch)
        if self._statistics:
            exponents = self._statistics.read_exponents()
            for layer, counts in exponents.items():
                self.exponents[layer] = self.exponents.get(layer, 0) + counts
            named = {f"gradient_exponents/{n}": e for n, e in exponents.items()}
            self._summaries.write_exponents(named, epoch)

    def end(self) -> None:
        """Keep no function without callers."""
        self._observed = None

    @never_raising
    def _make_observed(self) -> None:
        """Make the function that takes the figures, once the model is built.

        It computes in float32, with losses scaled as in training.
        """
        if self._observed is not None:
            return
        partner = self.sibling("AutoMixedPrecision")
        config = getattr(partner, "config", None) or current_config()
        low_dtype = self._dtype or low_dtype_of(config)
        self._statistics = GradientStatistics(self.model, low_dtype, self.switch_off)
        layer = None
        if getattr(partner, "is_active", False) or enabling.is_enabled():
            layer = float32_scope().opened()
            model_scopes.undo_after_call(self.model, switch.close_scope)
        self._observed = step_functions.fresh_alike(self.model, "train", layer)
