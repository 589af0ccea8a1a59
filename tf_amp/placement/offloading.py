"""Keep the slots of a Keras optimizer, and its update, on the host.

    optimizer = tf_amp.placement.offload_optimizer(keras.optimizers.Adam())
    model.compile(optimizer, loss, jit_compile=False)

Gradients go down, weights come back. With float32 both ways the weights are those of
the same optimizer without this, bit for bit.

The weights of the model stay what counts: where others write to them (a checkpoint that
is restored, an average put in their place), the copy is read again before the next
update. Eager writes are noted as they happen, others by a sample of the elements.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from grappler_pass.planning.prices import TRANSFER_BYTES_PER_SECOND
from tf_amp._tensorflow_private import training as private
from tf_amp.config import devices, scope_registry
from tf_amp.config.amp_config import checked_any_dtype
from tf_amp.errors import ConfigError
from tf_amp.placement.named_devices import checked_devices, short_name

_FLOAT32_BYTES = 4
STATE = "tf_amp_offload"
Update = Callable[[list[Any], list[Any]], Any]
# Elements of a weight by which it is seen that others have written to it, and what
# stands for their bits where that is certain.
_SAMPLE, _UNSEEN = 1024, 2**32
# The methods of a variable that write to it.
_WRITING = re.compile(r"scatter|^assign|assign$")


def offload_optimizer(
    optimizer: Any,
    device: str = "CPU:0",
    *,
    down: str = "float32",
    up: str = "float32",
    verbose: bool = True,
) -> Any:
    """Return a Keras optimizer, the very one, with its state on the host from now on.

    Saves and loads as it would without this. In a function compiled by XLA all runs on
    one device, so compile models with `jit_compile=False`.

    Args:
      optimizer: of Keras 3 or tf_keras, not yet built.
      device: where slots and the update are to be.
      down: type that gradients travel in: "float32", "bfloat16" or "float16". Large
        gradients overflow in float16.
      up: type that weights travel in. In 16 bits the model holds rounded weights, the
        host float32 ones; a checkpoint holds the rounded ones.
      verbose: whether what this saves and takes is printed once the slots exist.

    Raises:
      ConfigError: the optimizer is of another kind or has been built, the device is not
        there, a type is unknown.
    """
    base = _checked_class(optimizer)
    types = [checked_any_dtype(down, "down"), checked_any_dtype(up, "up")]
    (target,) = checked_devices([device], "device")
    state = HostState(target, *map(tf.as_dtype, types), verbose=verbose)
    optimizer.__class__ = offloaded_class(base)
    # Past an optimizer's own way to set attributes, which tracks what it is given.
    vars(optimizer)[STATE] = state
    return optimizer


def offload_report(optimizer: Any) -> OffloadReport:
    """Return the predicted savings and costs of an offloaded optimizer.

    Raises:
      ConfigError: the optimizer is not offloaded, or has not been built.
    """
    state: HostState | None = vars(optimizer).get(STATE)
    if state is None or state.report is None:
        raise ConfigError(
            f"offload_report: received {type(optimizer).__name__}, which is not "
            "offloaded or not built yet; allowed is what `offload_optimizer` "
            "returned, after `build` or a first step."
        )
    return state.report


def _checked_class(optimizer: Any) -> type:
    """Return the class of an optimizer of an imported Keras, new and wrapping no other.

    ConfigError says why it is another.
    """
    is_plain = False
    for package, home in (("keras", "optimizers"), ("tf_keras", "mixed_precision")):
        if package in sys.modules and not is_plain:
            optimizers = importlib.import_module(f"{package}.optimizers")
            wrappers = importlib.import_module(f"{package}.{home}")
            wrapper = getattr(wrappers, "LossScaleOptimizer", ())
            is_own = isinstance(optimizer, optimizers.Optimizer)
            is_plain = is_own and not isinstance(optimizer, wrapper)
    if not is_plain:
        raise ConfigError(
            f"optimizer: received {type(optimizer).__module__}."
            f"{type(optimizer).__name__}; allowed are optimizers of Keras 3 and of "
            "tf_keras (not its legacy ones) that wrap no other."
        )
    if STATE in vars(optimizer):
        raise ConfigError("optimizer: received one that is offloaded already.")
    if private.has_slots(optimizer):
        raise ConfigError(
            f"optimizer: received {optimizer.name!r}, whose slots exist already; "
            "offload it before its first step."
        )
    return type(optimizer)


@dataclasses.dataclass(frozen=True)
class OffloadReport:
    """Predictions for one optimizer; seconds are of transfers that nothing hides.

    Attributes:
      device: where slots and the update are.
      device_bytes_saved: size of the slots, which the accelerator need not hold.
      host_bytes: what the host holds: slots, and a float32 copy of the weights.
      bytes_down: gradients per step.
      bytes_up: weights per step.
      transfer_seconds: of both, at PCI Express 3.0's rate.
      update_seconds: by which the host's memory is slower than the accelerator's at the
        update itself.
    """

    device: str
    device_bytes_saved: int
    host_bytes: int
    bytes_down: int
    bytes_up: int
    transfer_seconds: float
    update_seconds: float

    @property
    def seconds_added(self) -> float:
        """Seconds per step if no other work runs meanwhile."""
        return self.transfer_seconds + self.update_seconds

    def __str__(self) -> str:
        """Show one line."""
        return (
            f"optimizer on {self.device}: saves {_mebi(self.device_bytes_saved)} MiB "
            f"on the device, takes {_mebi(self.host_bytes)} MiB on the host; per step "
            f"{_mebi(self.bytes_down)} MiB down and {_mebi(self.bytes_up)} MiB up, "
            f"predicted {self.seconds_added * 1e3:.3g} ms added where nothing overlaps"
        )


def report_for(
    state: HostState, variables: Sequence[Any], slots: Sequence[Any]
) -> OffloadReport:
    """Predict for an optimizer's variables, all float32, and its slots."""
    elements = sum(int(v.shape.num_elements()) for v in variables)
    slot_bytes = sum(
        int(tf.TensorShape(slot.shape).num_elements()) * tf.as_dtype(slot.dtype).size
        for slot in slots
    )
    bytes_down, bytes_up = elements * state.down.size, elements * state.up.size
    # Read and written: slots and weights. Read: gradients.
    touched = 2 * slot_bytes + 3 * elements * _FLOAT32_BYTES
    here, there = map(_memory_rate, (state.device, variables[0].device))
    return OffloadReport(
        device=short_name(state.device),
        device_bytes_saved=slot_bytes,
        host_bytes=slot_bytes + elements * _FLOAT32_BYTES,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        transfer_seconds=(bytes_down + bytes_up) / TRANSFER_BYTES_PER_SECOND,
        update_seconds=max(0.0, touched / here - touched / there),
    )


def _memory_rate(device: str) -> float:
    kind = short_name(device).partition(":")[0]
    target = devices.device_of_type(kind)
    profile = devices.profile_of(scope_registry.base_config(), target)
    return profile.roofline.bytes_per_second["float32"]


def _mebi(count: int) -> str:
    return f"{count / 2**20:.4g}"


@functools.cache
def offloaded_class(base: type) -> type:
    """Return a class like one of Keras', by the same name, that works on the host."""

    def build(optimizer: Any, variables: Any) -> None:
        if not private.has_slots(optimizer):
            _state_of(optimizer).build(base, optimizer, list(variables))

    methods: dict[str, Any] = {
        "__module__": base.__module__,
        "build": build,
        **private.offloading_methods(
            base, lambda optimizer, variable: _state_of(optimizer).original_of(variable)
        ),
    }
    # Keras 3 has both, and the one ends in the other.
    if hasattr(base, "apply"):
        methods["apply"] = _applying(base)
    else:
        methods["apply_gradients"] = _applying_pairs(base)
    return type(base.__name__, (base,), methods)


def _applying(base: Any) -> Callable[..., Any]:
    """Return the method of Keras 3."""

    def apply(
        optimizer: Any, grads: Any, trainable_variables: Any = None, **kwargs: Any
    ) -> Any:
        grads, given = list(grads), trainable_variables
        if not grads or (given is None and not optimizer.built):
            return base.apply(optimizer, grads, given, **kwargs)
        if not optimizer.built:
            optimizer.build(given)
        state = _state_of(optimizer)
        variables = list(state.originals if given is None else given)
        if len(grads) != len(variables):
            return base.apply(optimizer, grads, given, **kwargs)
        return state.update(
            grads,
            variables,
            lambda local, copies: base.apply(optimizer, local, copies, **kwargs),
        )

    return apply


def _applying_pairs(base: Any) -> Callable[..., Any]:
    """Return the method of tf_keras."""

    def apply_gradients(
        optimizer: Any, grads_and_vars: Any, name: Any = None, **kwargs: Any
    ) -> Any:
        pairs = list(grads_and_vars)
        grads = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if pairs and not private.has_slots(optimizer):
            with tf.name_scope(name or optimizer.name or "optimizer"):
                optimizer.build(variables)

        def update(local: list[Any], copies: list[Any]) -> Any:
            given = zip(local, copies, strict=True)
            return base.apply_gradients(optimizer, given, name=name, **kwargs)

        if all(gradient is None for gradient in grads):
            return update(grads, variables)
        return _state_of(optimizer).update(grads, variables, update)

    return apply_gradients


def _state_of(optimizer: Any) -> HostState:
    state: HostState = vars(optimizer)[STATE]
    return state


class HostState:
    """What one optimizer has on the host: copies of its variables, in their order.

    They are made when it is built. Not a trackable object: a checkpoint of the
    optimizer holds what it always does.

    Attributes:
      device: where it is.
      down: type that gradients travel in.
      up: type that weights travel in.
      originals: the variables, once there are copies.
      report: what is predicted, once there are slots.
    """

    def __init__(
        self, device: str, down: tf.DType, up: tf.DType, *, verbose: bool
    ) -> None:
        """Make nothing yet."""
        self.device, self.down, self.up = device, down, up
        self._verbose = verbose
        self.report: OffloadReport | None = None
        self.originals: tuple[Any, ...] = ()
        self._copies: tuple[tf.Variable, ...] = ()
        self._seen: tuple[tf.Variable, ...] = ()
        self._index: dict[Any, int] = {}

    def build(self, base: Any, optimizer: Any, variables: list[Any]) -> None:
        """Make copies and samples of variables, and the optimizer's slots of them.

        Raises:
          ConfigError: a variable is not float32, or distributed.
        """
        self.originals = tuple(map(_plain, variables))
        for variable in self.originals:
            if variable.dtype != tf.float32:
                raise ConfigError(
                    f"offload_optimizer: received the variable {variable.name!r} of "
                    f"type {variable.dtype.name}; allowed is float32."
                )
            is_distributed = isinstance(variable, tf.distribute.DistributedValues)
            if is_distributed or tf.distribute.has_strategy():
                raise ConfigError(
                    "offload_optimizer: received variables of a tf.distribute "
                    "strategy; allowed is one device, without a strategy."
                )
        # Slots, and what weight decay leaves alone, depend on the names of weights.
        root = tf.name_scope("")
        with tf.init_scope(), tf.device(self.device), root:
            self._copies = tuple(map(_copy, variables))
            self._seen = tuple(
                tf.Variable(tf.fill([_places(v).size], _UNSEEN), trainable=False)
                for v in self.originals
            )
        for variable, seen in zip(self.originals, self._seen, strict=True):
            _note_writes(variable, seen)
        for both in (self.originals, self._copies):
            self._index |= {v.ref(): number for number, v in enumerate(both)}
        earlier = {id(variable) for variable in optimizer.variables}
        with tf.init_scope(), tf.device(self.device):
            base.build(optimizer, list(self._copies))
        slots = [v for v in optimizer.variables if id(v) not in earlier]
        self.report = report_for(self, self.originals, slots)
        if self._verbose:
            print(self.report)

    def original_of(self, variable: Any) -> Any:
        """Return the original of a copy; of another variable, itself."""
        return self._counterpart(variable, self.originals)

    def _counterpart(self, variable: Any, among: Sequence[Any]) -> Any:
        index = self._index.get(_plain(variable).ref())
        return variable if index is None else among[index]

    def update(
        self, grads: Sequence[Any], variables: Sequence[Any], update: Update
    ) -> Any:
        """Let an optimizer that is built update the copies, and bring weights back."""
        self._refresh()
        pairs = list(zip(grads, variables, strict=True))
        local = [self._gradient_down(*pair) for pair in pairs]
        with tf.device(self.device):
            copies = [self._counterpart(v, self._copies) for v in variables]
            result = update(local, copies)
        # Copies go to the weights that they are of.
        for variable in [v for gradient, v in pairs if gradient is not None]:
            index = self._index[_plain(variable).ref()]
            original, copy = self.originals[index], self._copies[index]
            with tf.device(self.device):
                rounded = tf.cast(copy.read_value(), self.up)
            with tf.device(original.device):
                original.assign(tf.cast(tf.identity(rounded), tf.float32))
            with tf.device(self.device):
                # After the assignment, which is noted as others' are.
                self._seen[index].assign(_sample(tf.cast(rounded, tf.float32)))
        return result

    def _refresh(self) -> None:
        """Read the weights again that others have written.

        Others may be less than their copies, which are not rounded.
        """
        now = [_on(v.device, _sample, v) for v in self.originals]

        def read() -> tf.Tensor:
            with tf.device(self.device):
                for i, copy in enumerate(self._copies):
                    original = tf.identity(self.originals[i])
                    copy.assign(tf.where(written[i], original, copy))
                    self._seen[i].assign(now[i])
                return tf.constant(True)

        with tf.device(self.device):
            written = [
                tf.reduce_any(tf.not_equal(sample, seen))
                for sample, seen in zip(now, self._seen, strict=True)
            ]
            tf.cond(tf.reduce_any(written), read, lambda: tf.constant(False))

    def _gradient_down(self, gradient: Any, variable: Any) -> Any:
        """Return a gradient on the host, in float32 again."""
        if gradient is None:
            return None
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        values = gradient.values if is_sparse else gradient
        device = self.original_of(variable).device
        rounded = _on(device, tf.cast, values, self.down)
        with tf.device(self.device):
            wide = tf.cast(tf.identity(rounded), tf.float32)
            if not is_sparse:
                return wide
            indices = tf.identity(gradient.indices)
            return tf.IndexedSlices(wide, indices, gradient.dense_shape)


def _plain(variable: Any) -> Any:
    """Return the `tf.Variable` of a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _copy(variable: Any) -> tf.Variable:
    plain = _plain(variable)
    # One that is made while a function is traced has no value yet; it is read before
    # the first update.
    has_value = not tf.executing_eagerly() or plain.is_initialized()
    copy = tf.Variable(
        tf.identity(plain) if has_value else tf.zeros(plain.shape),
        name=plain.name.partition(":")[0],
        trainable=False,
        constraint=variable.constraint,
    )
    # Keras names slots after it.
    vars(copy)["path"] = getattr(variable, "path", plain.name)
    return copy


def _note_writes(variable: Any, seen: tf.Variable) -> None:
    """Have what eager code writes by a variable's methods noted at once.

    Traced code that writes would take the note along, to where it is exported.
    """

    def writing(write: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            seen.assign(tf.fill(seen.shape, _UNSEEN))
        return write(*args, **kwargs)

    for name in filter(_WRITING.search, dir(variable)):
        vars(variable)[name] = functools.partial(writing, getattr(variable, name))


def _sample(values: Any) -> tf.Tensor:
    """Return the bits of some elements; of all where they are few."""
    flat = tf.reshape(values, [-1])
    some = tf.gather(flat, _places(values))
    return tf.cast(tf.bitcast(some, tf.int32), tf.int64)


def _places(values: Any) -> npt.NDArray[np.int64]:
    """Return where to look at values, by their number: at random, in no pattern."""
    count = int(values.shape.num_elements())
    if count <= _SAMPLE:
        return np.arange(count)
    return np.unique(np.random.default_rng(0).integers(count, size=_SAMPLE))


def _on(device: str, function: Any, *args: Any) -> Any:
    with tf.device(device):
        return function(*args)
