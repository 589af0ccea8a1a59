"""Mixed precision for one `fit`, `evaluate` or `predict`, and nothing after it.

    model.fit(x, y, callbacks=[keras_callbacks.AutoMixedPrecision()])

The functions that the model runs for each step are made again, and traced within a
`mixed_precision_scope`. When the call ends, or raises, the model has those back that it
had before. What is said at the end calls only that measured which was; else the gain is
a prediction.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from grappler_pass.planning.plan import Cause, Plan, planned_nodes
from keras_callbacks import step_functions
from keras_callbacks.callback import Callback, Logs, check_one_of
from keras_callbacks.loss_scale_monitor import (
    ScaleReading,
    ScaleReadings,
    scales_losses,
)
from keras_callbacks.step_time_monitor import Comparison
from keras_callbacks.summaries import ROWS, PlanWatch, Summaries, WatchedPlan, writes
from tf_amp.config.amp_config import LOW_DTYPES, AmpConfig, LowDtype, OptLevel
from tf_amp.config.devices import loss_scale_for
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.config.loss_scales.words import LossScaleWord
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code
from tf_amp.report.plans import layers_in_markdown
from tf_amp.runtime import model_scopes, switch
from tf_amp.runtime.scope import mixed_precision_scope
from tf_amp.tracing import stack as scope_stack
from tf_amp.tracing.stamps import current_config
from tf_amp.training import checkpoints

_MILLI = 1e3
# Why a whole plan was not applied.
_OF_WHOLE_PLANS = (
    Cause.TRIAL,
    Cause.DOUBT,
    Cause.LEVEL,
    Cause.MARGIN,
    Cause.KERNEL_STATE,
)
_WHAT = {"train": "Training", "test": "Validation", "predict": "Prediction"}


def paragraph(
    watch: PlanWatch,
    scale: ScaleReading,
    comparison: Comparison | None,
    steps_per_call: int = 1,
) -> str:
    """Return one paragraph: converted share, gain, skipped steps.

    The scale is that at the end; one run of a graph takes so many steps.
    """
    per = "step" if steps_per_call == 1 else "call"
    sentences = [
        _converted(role, plans, per)
        for role in _WHAT
        if (plans := [each for each in watch.plans if each.role == role])
    ]
    if not sentences:
        sentences = ["No graph with a matrix product or a convolution was optimized."]
    not_measured = (
        "The gain was not measured. StepTimeMonitor(compare=10), given as well, "
        "measures it."
    )
    sentences.append(f"Measured: {comparison}." if comparison else not_measured)
    steps = f"{scale.skipped_here or 'no'} step{'' if scale.skipped_here == 1 else 's'}"
    if scale.is_own:
        sentences.append(
            f"The optimizer scales losses itself, by {scale.loss_scale:g} at the end."
        )
    elif scale.loss_scale == 1.0 and not scale.skipped_here:
        sentences.append("Losses were not scaled, no step was skipped.")
    else:
        ends = f"The loss scale ends at {scale.loss_scale:g}"
        sentences.append(f"{ends}; {steps} skipped.")
    return "Mixed precision: " + " ".join(sentences)


def _converted(role: str, plans: list[WatchedPlan], per: str) -> str:
    # A batch of another size, or a metric, may have a graph of its own.
    largest = max(plans, key=lambda watched: watched.plan.seconds_before)
    plan = largest.plan
    # A graph that only shares scalars is applied, and stays float32.
    if not largest.is_applied or plan.is_empty:
        causes = {row.reason.cause for row in plan.decisions}
        of_all = (cause.value for cause in _OF_WHOLE_PLANS if cause in causes)
        why = next(of_all, "no conversion was predicted to pay")
        return f"{_WHAT[role]} stays float32: {why}."
    nodes = planned_nodes(plan.decisions)
    low = [node.seconds_float32 for node in nodes if node.main.is_low]
    # Of the predicted float32 step.
    share = sum(low) / (sum(node.seconds_float32 for node in nodes) or 1.0)
    return (
        f"{_WHAT[role]} has {len(low)} of {len(nodes)} operations ({share:.0%} of the "
        f"time) in {plan.low_dtype}. A {per} is expected to take "
        f"{plan.seconds_after * _MILLI:.3g} ms instead of "
        f"{plan.seconds_float32 * _MILLI:.3g} ms ({plan.speedup_text})."
    )


def _largest(plans: Iterable[Plan]) -> Plan:
    return max(plans, key=lambda plan: plan.seconds_before)


# Roles of the functions that methods run outside of `fit`.
_ALONE = {"evaluate": "test", "predict": "predict"}


class AutoMixedPrecision(Callback):
    """Trains in mixed precision for the time of one `fit`, or evaluates, or predicts.

    The model keeps its optimizer, and need not be compiled for it. Weights, optimizer
    state and what is saved stay float32. A model with a mixed policy of Keras' own is
    left alone.

    Attributes:
      watch: the plans made in the latest `fit`.
    """

    def __init__(
        self,
        dtype: LowDtype | None = None,
        *,
        loss_scale: LossScale | float | LossScaleWord | str | None = None,
        opt_level: OptLevel | None = None,
        exclude: Iterable[Any] = (),
        validation: bool = True,
        predict: bool = False,
        verbose: int | None = None,
    ) -> None:
        """Take the options of `mixed_precision_scope`, and what else is converted.

        Args:
          dtype: "bfloat16" or "float16"; None lets each device choose.
          loss_scale: a loss scale, a number or words for one, see loss scaling.
          opt_level: "O0" to "O3".
          exclude: regular expressions and layers of the model; operations so named, or
            that such a layer makes, stay float32.
          validation: whether evaluations during `fit` are in mixed precision too.
          predict: whether predictions that other callbacks make during `fit` are.
          verbose: 1 prints a paragraph when `fit` ends, 0 nothing; None: as `fit` has
            it.

        Raises:
          ConfigError: an argument is none of those allowed.
        """
        check = functools.partial(check_one_of, "AutoMixedPrecision")
        check("validation", validation, (True, False))
        check("predict", predict, (True, False))
        check("verbose", verbose, (None, 0, 1, 2))
        self.verbose = verbose
        self._roles = ("train", *["test"] * validation, *["predict"] * predict)
        self._scope = mixed_precision_scope(
            dtype, loss_scale=loss_scale, opt_level=opt_level, exclude=exclude
        )
        self._layer: scope_stack.Layer | None = None
        self.watch = PlanWatch()
        self._summaries = Summaries()
        self._epoch = 0
        self._scales: ScaleReadings | None = None
        self._functions: dict[str, Any] = {}
        # Outside of `fit`, by role: the own one, its settings, and what replaces it.
        self._alone: dict[str, tuple[Any, str | None, step_functions.StepFunction]] = {}
        self._end_alone = ExitStack()
        # Another callback may restore a checkpoint before this one begins.
        checkpoints.install()

    @property
    def config(self) -> AmpConfig | None:
        """What the `fit` that is running is traced under."""
        if self._layer is None:
            return None
        with scope_stack.within((*scope_stack.layers(), self._layer)):
            return current_config()

    @property
    def is_active(self) -> bool:
        """Whether a `fit` is running in mixed precision through this callback."""
        return self._layer is not None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Replace the functions that the model runs for each step.

        Raises:
          ConfigError: there are several such callbacks in one `fit`.
          ShimError: the compiled shim is missing or cannot be loaded.
        """
        count = sum(isinstance(each, AutoMixedPrecision) for each in self.others)
        if count > 1:
            raise ConfigError(
                f"AutoMixedPrecision: received {count} of them in the callbacks of one "
                "fit; one is allowed."
            )
        self._leave()
        self._summaries = Summaries(self.sibling("TensorBoard"), self.model)
        if self._has_obstacle():
            return
        self._layer = self._scope.opened()
        model_scopes.undo_after_call(self.model, self._leave)
        self.watch = PlanWatch()
        self.watch.start()
        self._scales = None
        optimizer = self.model.optimizer
        if scales_losses(optimizer) and loss_scale_for(self.config).scales:
            Code.SCALED_ALREADY.warn(
                "AutoMixedPrecision leaves the scaling of losses to the model's %s.",
                type(optimizer).__name__,
            )
        for role in self._roles:
            self._convert(role, step_functions.fresh(self.model, role))

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Convert also what other callbacks have made again or restored meanwhile."""
        if self.is_active and self._scales is None:
            self._scales = ScaleReadings(self.model)
        for role in self._functions:
            present = step_functions.current(self.model, role)
            if present and not step_functions.is_within(present, self._functions[role]):
                self._convert(role, present)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Give new plans to TensorBoard."""
        self._epoch = epoch
        self._summaries.write_plans(self.watch.take_new(), epoch)

    def on_train_end(self, logs: Logs = None) -> None:
        """Put everything back, and say what was gained."""
        if not self.is_active or self._scales is None:
            self._summaries.close()
            return
        timer = self.sibling("StepTimeMonitor")
        text = paragraph(
            self.watch,
            self._scales.read(),
            getattr(timer, "comparison", None),
            step_functions.steps_per_call(self.model),
        )
        trained = [each.plan for each in self.watch.plans if each.role == "train"]
        layers = layers_in_markdown(_largest(trained), ROWS) if trained else ""
        result = f"{text}\n\n{layers}"
        self._summaries.write_text("result", result, self._epoch)
        self._summaries.close()
        model_scopes.undo_changes(self.model)
        asked = (self.params or {}).get("verbose", 1)
        if (asked if self.verbose is None else self.verbose) and writes(self.model):
            print(text)

    def set_model(self, model: Any) -> None:
        """Take the model; replace its function for an `evaluate` or `predict`."""
        super().set_model(model)
        # That of tf_keras takes its function before evaluations begin.
        role = _ALONE.get(model_scopes.running_method(model))
        if not role:
            return
        self._end_alone.close()
        if self._has_obstacle():
            return
        layer = self._scope.opened()
        self._end_alone.callback(switch.close_scope)
        getattr(model, f"make_{role}_function")()
        own = step_functions.current(model, role)
        # What replaces it is kept, so that it is traced once.
        kept, settings, converted = self._alone.get(role, (None, None, None))
        if converted is None or kept is not own or settings != layer.settings:
            fresh = step_functions.fresh(model, role)
            converted = step_functions.in_layer(fresh, layer)
            self._alone[role] = own, layer.settings, converted
        self._end_alone.callback(step_functions.put_now(model, role, converted))
        model_scopes.undo_after_call(model, self._end_alone.close)

    def on_test_end(self, logs: Logs = None) -> None:
        """Put back what was there before an `evaluate` or a `predict`."""
        self._end_alone.close()

    on_predict_end = on_test_end

    def _has_obstacle(self) -> bool:
        """Return whether the model cannot be converted, which is said."""
        obstacle = ""
        if not hasattr(self.model, "distribute_strategy"):
            obstacle = "the model is not trained by TensorFlow"
        elif not tf.executing_eagerly():
            obstacle = (
                "this is graph mode, where `with tf_amp.mixed_precision_scope():` goes "
                "around building the model"
            )
        elif policy := mixed_policy_of(self.model):
            obstacle = f"the model has Keras' policy {policy}"
        if obstacle:
            Code.CALLBACK_IS_OFF.warn("AutoMixedPrecision is disabled: %s.", obstacle)
        return bool(obstacle)

    def _convert(self, role: str, function: step_functions.StepFunction) -> None:
        if self._layer is None:
            return
        note = functools.partial(setattr, self.watch, "role", role)
        converted = step_functions.in_layer(function, self._layer, note)
        self._functions[role] = converted
        step_functions.put(self.model, role, converted)

    def _leave(self) -> None:
        """End the scope, if it is in force."""
        if self._layer is None:
            return
        self._layer = None
        self._functions = {}
        self.watch.stop()
        switch.close_scope()


def mixed_policy_of(model: Any) -> str:
    """Name the policy under which a layer of a model computes in 16 bits, if any.

    The model is one of Keras 3 or tf_keras, perhaps with others within it.
    """
    if getattr(model, "compute_dtype", None) in LOW_DTYPES:
        policy = getattr(model, "dtype_policy", None)
        return str(getattr(policy, "name", model.compute_dtype))
    found = map(mixed_policy_of, getattr(model, "layers", ()))
    return next(filter(None, found), "")
