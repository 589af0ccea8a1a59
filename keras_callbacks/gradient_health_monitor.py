"""Which layers' gradients leave the range of the 16-bit type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_callbacks.callback import Logs, Monitor, check_one_of, never_raising
from keras_callbacks.running_fit import step_functions
from keras_callbacks.running_fit.gradient_statistics import (
    GradientHealth,
    GradientStatistics,
)
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.config.loss_scales.choosing import low_dtype_of
from tf_amp.runtime import model_scopes, switch
from tf_amp.runtime.scope import float32_scope
from tf_amp.tracing import stack as scope_stack
from tf_amp.tracing.in_force import current_config


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

    def __init__(self, every: int = 100, *, dtype: str | None = None) -> None:
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
        step_functions.put(self.model, "train", self._by_turns(plain))

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
            logs.update(_worst_of(self.health))
        self._summaries.write(_by_layer(read), epoch)
        if self._statistics:
            exponents = self._statistics.read_exponents()
            for layer, counts in exponents.items():
                self.exponents[layer] = self.exponents.get(layer, 0) + counts
            named = {f"gradient_exponents/{n}": e for n, e in exponents.items()}
            self._summaries.write_exponents(named, epoch)

    def end(self) -> None:
        """Keep no function that nobody calls any more."""
        self._observed = None

    def _by_turns(
        self, plain: step_functions.StepFunction
    ) -> step_functions.StepFunction:
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

        return step_functions.wrapping(call_by_turns, plain)

    @never_raising
    def _make_observed(self) -> None:
        if self._observed is not None:
            return

        def fail(error: Exception) -> None:
            self.switch_off(f"{type(error).__name__}: {error}")

        partner = self.sibling("AutoMixedPrecision")
        config = getattr(partner, "config", None) or current_config()
        low_dtype = self._dtype or low_dtype_of(config)
        self._statistics = GradientStatistics(self.model, low_dtype, fail)
        self._observed = step_functions.fresh_alike(
            self.model, "train", self._float32_layer()
        )

    def _float32_layer(self) -> scope_stack.Layer | None:
        """Return what keeps the figures' step in float32, with losses scaled alike."""
        partner = self.sibling("AutoMixedPrecision")
        if not (getattr(partner, "is_active", False) or switch.is_enabled()):
            return None
        layer = float32_scope().opened()
        model_scopes.undo_after_call(self.model, switch.close_scope)
        return layer


def _worst_of(health: Mapping[str, GradientHealth]) -> dict[str, float]:
    return {
        # Of several, NaN counts as the largest.
        "gradient_max": float(np.max([each.largest for each in health.values()])),
        "gradient_underflow": max(each.underflow_share for each in health.values()),
        "gradient_overflow": max(each.overflow_share for each in health.values()),
    }


def _by_layer(health: Mapping[str, GradientHealth]) -> dict[str, float]:
    scalars = {}
    for layer, each in health.items():
        scalars[f"gradient_max/{layer}"] = each.largest
        scalars[f"gradient_underflow/{layer}"] = each.underflow_share
        scalars[f"gradient_overflow/{layer}"] = each.overflow_share
    return scalars
