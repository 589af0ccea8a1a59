"""Updates of Keras 3's optimizers as one kernel of TensorFlow each.

Before   m.assign_add(...); v.assign_add(...); w.assign_sub(m * a / (sqrt(v) + e))
After    ResourceApplyAdam(w, m, v, ...)

Keras writes an update in up to a dozen operations, each of which reads and writes as
much memory as the weight takes. The kernels compute the same formulas
(tensorflow/core/kernels/training_ops.cc) in one pass, on the same variables.

Of sparse gradients, Keras squares each row by itself for Adam's second average, also
those of the same number, where the kernel would square their sum; that average is moved
before the kernel, which leaves it as it is.

Adagrad's kernel adds epsilon behind the root, and RMSprop's has a momentum to write. So
the first is used where epsilon is next to nothing beside what it is added to, as by
default; in place of the other, two kernels that descend leave seven passes of ten.

Not done: where TensorFlow has no kernel (Nadam, Adafactor, centered RMSprop without
momentum); for Lion, whose signs flip where averages are rounded in another way, so that
one pass of ten could be saved; for sparse gradients of others than Adam; for weights
that are not float32, that are small, or whose slots are on another device; under XLA,
which fuses by itself; for optimizers that assign in a way of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from grappler_pass.fusions import OPTIMIZER_STEPS
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private import wrapping_unconverted
from tf_amp.training.layer_fusions import is_wanted, mark

# On a CPU of two cores an update of 2^13 elements takes as long either way, one of 2^16
# two thirds of the time: the kernel is shared out to threads, which takes its time.
_LEAST_ELEMENTS = 2**15
# Of a sum of squares, what changes its root by as much as rounding does.
_NEGLIGIBLE = 2e-6
_ASSIGNING = ("assign", "assign_add", "assign_sub")


class _Step(NamedTuple):
    """One update of one weight.

    Attributes:
      optimizer: of Keras.
      slots: resource handles of its variables for the weight, by the kernel's names.
      weight: resource handle.
      gradient: float32, of the weight's shape.
      squares: of a sparse gradient, the sum of the squares of its rows, of the weight's
        shape, as Keras counts a row that is there more than once; else None.
      rate: learning rate, float32 scalar.
    """

    optimizer: Any
    slots: Mapping[str, Any]
    weight: Any
    gradient: Any
    squares: Any
    rate: Any

    def power(self, base: float) -> Any:
        """Return a factor to the power of the number of this step, float32 scalar."""
        return tf.pow(base, tf.cast(self.optimizer.iterations + 1, tf.float32))

    def apply(self, kernel: Callable[..., Any], *names: str, **others: Any) -> Any:
        """Add a kernel's operation.

        Names are attributes that the optimizer has under the kernel's own names.
        """
        given = {name: getattr(self.optimizer, name) for name in names}
        known = {"var": self.weight, "lr": self.rate, "grad": self.gradient}
        return kernel(**known, **self.slots, **given, **others)


def _descend(step: _Step) -> Any:
    if not step.slots:
        return tf.raw_ops.ResourceApplyGradientDescent(
            var=step.weight, alpha=step.rate, delta=step.gradient
        )
    return step.apply(
        tf.raw_ops.ResourceApplyKerasMomentum,
        "momentum",
        use_nesterov=step.optimizer.nesterov,
    )


def _adam(step: _Step) -> Any:
    optimizer, beta2 = step.optimizer, step.optimizer.beta_2
    powers = [step.power(base) for base in (optimizer.beta_1, beta2)]
    if step.squares is not None:
        _average(step.slots["v"], step.squares, beta2)
        # The kernel leaves these averages as they are.
        beta2 = 1.0
    return step.apply(
        tf.raw_ops.ResourceApplyAdamWithAmsgrad
        if optimizer.amsgrad
        else tf.raw_ops.ResourceApplyAdam,
        beta1_power=powers[0],
        beta2_power=powers[1],
        beta1=optimizer.beta_1,
        beta2=beta2,
        epsilon=optimizer.epsilon,
    )


def _average(slot: Any, value: Any, decay: float) -> None:
    """Move the average that a resource holds towards a value."""
    known = tf.raw_ops.ReadVariableOp(resource=slot, dtype=tf.float32)
    tf.raw_ops.ResourceApplyGradientDescent(
        var=slot, alpha=1.0 - decay, delta=known - value
    )


def _rmsprop(step: _Step) -> Any:
    optimizer = step.optimizer
    if "mom" in step.slots:
        kernel = (
            tf.raw_ops.ResourceApplyCenteredRMSProp
            if optimizer.centered
            else tf.raw_ops.ResourceApplyRMSProp
        )
        return step.apply(kernel, "rho", "momentum", "epsilon")
    _average(step.slots["ms"], tf.square(step.gradient), optimizer.rho)
    average = tf.raw_ops.ReadVariableOp(resource=step.slots["ms"], dtype=tf.float32)
    return tf.raw_ops.ResourceApplyGradientDescent(
        var=step.weight,
        alpha=step.rate,
        delta=step.gradient * tf.math.rsqrt(average + optimizer.epsilon),
    )


def _slots_of_rmsprop(optimizer: Any) -> Mapping[str, str] | None:
    if optimizer.momentum <= 0:
        return None if optimizer.centered else {"ms": "_velocities"}
    means = {"mg": "_average_gradients"} if optimizer.centered else {}
    return {"ms": "_velocities", "mom": "_momentums", **means}


class FusedKernel(NamedTuple):
    """What takes the place of an `update_step`.

    Attributes:
      apply: adds the operation.
      slots: returns the names of an optimizer's lists of variables that the kernel
        takes, by the kernel's; None where it does not suit the optimizer.
      takes_rows: returns whether sparse gradients suit it, too.
    """

    apply: Callable[[_Step], Any]
    slots: Callable[[Any], Mapping[str, str] | None]
    takes_rows: Callable[[Any], bool] = lambda optimizer: False


# By the name of the class of Keras that has the `update_step`.
KERNELS: dict[str, FusedKernel] = {
    "SGD": FusedKernel(
        _descend,
        lambda optimizer: {"accum": "momentums"} if optimizer.momentum != 0 else {},
    ),
    "Adam": FusedKernel(
        _adam,
        lambda optimizer: {
            "m": "_momentums",
            "v": "_velocities",
            **({"vhat": "_velocity_hats"} if optimizer.amsgrad else {}),
        },
        takes_rows=lambda optimizer: not optimizer.amsgrad,
    ),
    "Adamax": FusedKernel(
        lambda step: step.apply(
            tf.raw_ops.ResourceApplyAdaMax,
            beta1_power=step.power(step.optimizer.beta_1),
            beta1=step.optimizer.beta_1,
            beta2=step.optimizer.beta_2,
            epsilon=step.optimizer.epsilon,
        ),
        lambda optimizer: {"m": "_m", "v": "_u"},
    ),
    "Adagrad": FusedKernel(
        lambda step: step.apply(tf.raw_ops.ResourceApplyAdagradV2, "epsilon"),
        lambda optimizer: (
            {"accum": "_accumulators"}
            if optimizer.epsilon <= _NEGLIGIBLE * optimizer.initial_accumulator_value
            else None
        ),
    ),
    "RMSprop": FusedKernel(_rmsprop, _slots_of_rmsprop),
    "Adadelta": FusedKernel(
        lambda step: step.apply(tf.raw_ops.ResourceApplyAdadelta, "rho", "epsilon"),
        lambda optimizer: {
            "accum": "_accumulated_grads",
            "accum_update": "_accumulated_delta_vars",
        },
    ),
    "Ftrl": FusedKernel(
        lambda step: step.apply(
            tf.raw_ops.ResourceApplyFtrlV2,
            l1=step.optimizer.l1_regularization_strength,
            l2=step.optimizer.l2_regularization_strength
            + step.optimizer.beta / (2.0 * step.rate),
            l2_shrinkage=step.optimizer.l2_shrinkage_regularization_strength,
            lr_power=step.optimizer.learning_rate_power,
        ),
        lambda optimizer: {"accum": "_accumulators", "linear": "_linears"},
    ),
}


def _update(
    kernel: FusedKernel,
    update_step: Callable[..., Any],
    optimizer: Any,
    gradient: Any,
    variable: Any,
    learning_rate: Any,
) -> Any:
    """Do what an `update_step` does, by a kernel where it does the same."""
    step = _step(kernel, optimizer, gradient, variable, learning_rate)
    if step is None:
        return update_step(optimizer, gradient, variable, learning_rate)
    mark(kernel.apply(step), OPTIMIZER_STEPS)
    return None


def _step(
    kernel: FusedKernel,
    optimizer: Any,
    gradient: Any,
    variable: Any,
    learning_rate: Any,
) -> _Step | None:
    """Return the inputs of a kernel; None where Keras' own update is to run."""
    names = kernel.slots(optimizer)
    if names is None or not is_wanted(OPTIMIZER_STEPS):
        return None
    # A subclass may have taken over how variables are assigned.
    kind = type(optimizer)
    owner = next(c for c in kind.__mro__ if c.__module__.startswith("keras.src."))
    if any(getattr(kind, name) is not getattr(owner, name) for name in _ASSIGNING):
        return None
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    suits = (
        kernel.takes_rows(optimizer) if is_sparse else isinstance(gradient, tf.Tensor)
    )
    is_float32 = isinstance(variable, tf.Variable) and variable.dtype == tf.float32
    if not suits or not is_float32:
        return None
    if "GPU" not in variable.device:
        if (variable.shape.num_elements() or 0) < _LEAST_ELEMENTS:
            return None
    index = optimizer._get_variable_index(variable)
    slots = {k: getattr(optimizer, name)[index].value for k, name in names.items()}
    if any(
        slot.dtype != tf.float32 or slot.device != variable.device
        for slot in slots.values()
    ):
        return None
    dense = tf.cast(tf.convert_to_tensor(gradient), tf.float32)
    squares = None
    if is_sparse:
        squared = tf.square(tf.cast(gradient.values, tf.float32))
        rows = tf.IndexedSlices(squared, gradient.indices, gradient.dense_shape)
        squares = tf.convert_to_tensor(rows)
    return _Step(
        optimizer,
        {name: slot.handle for name, slot in slots.items()},
        variable.handle,
        dense,
        squares,
        tf.cast(learning_rate, tf.float32),
    )


HOOKS = {
    hook: wrapping_unconverted(functools.partial(_update, KERNELS[hook.owner]))
    for hook in private.UPDATES
}
