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
    transfer = Transfer(target, *map(tf.as_dtype, types))
    optimizer.__class__ = offloaded_class(base)
    # Past an optimizer's own way to set attributes, which tracks what it is given.
    vars(optimizer)[STATE] = HostState(transfer, verbose=verbose)
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
    if not _is_plain_optimizer(optimizer):
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


def _is_plain_optimizer(optimizer: Any) -> bool:
    """Return whether this is of an imported Keras, and wraps no other."""
    for package, home in (("keras", "optimizers"), ("tf_keras", "mixed_precision")):
        if package not in sys.modules:
            continue
        optimizers = importlib.import_module(f"{package}.optimizers")
        if isinstance(optimizer, optimizers.Optimizer):
            wrappers = importlib.import_module(f"{package}.{home}")
            wrapper = getattr(wrappers, "LossScaleOptimizer", ())
            return not isinstance(optimizer, wrapper)
    return False


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
    transfer: Transfer, variables: Sequence[Any], slots: Sequence[Any]
) -> OffloadReport:
    """Predict for an optimizer's variables, all float32, and its slots."""
    device = transfer.device
    elements = sum(int(v.shape.num_elements()) for v in variables)
    slot_bytes = sum(
        int(tf.TensorShape(slot.shape).num_elements()) * tf.as_dtype(slot.dtype).size
        for slot in slots
    )
    bytes_down = elements * transfer.down.size
    bytes_up = elements * transfer.up.size
    # Read and written: slots and weights. Read: gradients.
    touched = 2 * slot_bytes + 3 * elements * _FLOAT32_BYTES
    here, there = _memory_rate(device), _memory_rate(variables[0].device)
    return OffloadReport(
        device=short_name(device),
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


@dataclasses.dataclass(eq=False)
class HostState:
    """State of one offloaded optimizer, with copies once that is built.

    It is no trackable object.
    """

    transfer: Transfer
    verbose: bool
    copies: HostCopies | None = None
    report: OffloadReport | None = None


@functools.cache
def offloaded_class(base: type) -> type:
    """Return a class like one of Keras', by the same name, that works on the host."""
    methods: dict[str, Any] = {
        "__module__": base.__module__,
        "build": lambda optimizer, variables: _build(base, optimizer, variables),
        **private.offloading_methods(base, _original_of),
    }
    # Keras 3 has both, and the one ends in the other.
    if hasattr(base, "apply"):
        methods["apply"] = _applying(base)
    else:
        methods["apply_gradients"] = _applying_pairs(base)
    return type(base.__name__, (base,), methods)


def _build(base: Any, optimizer: Any, variables: Any) -> None:
    if private.has_slots(optimizer):
        return
    state: HostState = vars(optimizer)[STATE]
    earlier = {id(variable) for variable in optimizer.variables}
    state.copies = HostCopies(list(variables), state.transfer)
    with tf.init_scope(), tf.device(state.transfer.device):
        base.build(optimizer, list(state.copies.copies))
    slots = [v for v in optimizer.variables if id(v) not in earlier]
    state.report = report_for(state.transfer, state.copies.originals, slots)
    if state.verbose:
        print(state.report)


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
        variables = list(_copies(optimizer).originals if given is None else given)
        if len(grads) != len(variables):
            return base.apply(optimizer, grads, given, **kwargs)
        return _update(
            optimizer,
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
        return _update(optimizer, grads, variables, update)

    return apply_gradients


def _update(
    optimizer: Any, grads: Sequence[Any], variables: Sequence[Any], update: Update
) -> Any:
    """Let an optimizer that is built update the copies, and bring weights back."""
    copies, device = _copies(optimizer), vars(optimizer)[STATE].transfer.device
    copies.refresh()
    pairs = list(zip(grads, variables, strict=True))
    local = [copies.gradient_down(gradient, variable) for gradient, variable in pairs]
    with tf.device(device):
        result = update(local, [copies.copy_of(v) for v in variables])
    copies.weights_up([v for gradient, v in pairs if gradient is not None])
    return result


def _copies(optimizer: Any) -> HostCopies:
    copies: HostCopies | None = vars(optimizer)[STATE].copies
    assert copies is not None, "an optimizer that is built has copies"
    return copies


def _original_of(optimizer: Any, variable: Any) -> Any:
    copies = vars(optimizer)[STATE].copies
    return variable if copies is None else copies.original_of(variable)


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Where the copies are, and the types that gradients and weights travel in."""

    device: str
    down: tf.DType
    up: tf.DType


class HostCopies:
    """The copies of one optimizer's variables, in the same order.

    Not a trackable object: a checkpoint of the optimizer holds what it always does.
    """

    def __init__(self, variables: Sequence[Any], transfer: Transfer) -> None:
        """Make copies and fingerprints on the host.

        Raises:
          ConfigError: a variable is not float32, or distributed.
        """
        self.originals = tuple(map(_plain, variables))
        self._transfer = transfer
        for variable in self.originals:
            _check(variable)
        # Slots, and what weight decay leaves alone, go by the names of the weights.
        root = tf.name_scope("")
        with tf.init_scope(), tf.device(transfer.device), root:
            self.copies = tuple(map(_copy, variables))
            self._seen = tuple(
                tf.Variable(tf.fill([_places(v).size], _UNSEEN), trainable=False)
                for v in self.originals
            )
        for variable, seen in zip(self.originals, self._seen, strict=True):
            _note_writes(variable, seen)
        self._index = {v.ref(): i for i, v in enumerate(self.originals)}
        self._index |= {v.ref(): i for i, v in enumerate(self.copies)}

    def copy_of(self, variable: Any) -> Any:
        """Return the copy of a variable; of a stranger, itself."""
        return self._counterpart(variable, self.copies)

    def original_of(self, variable: Any) -> Any:
        """Return the original of a copy; of another variable, itself."""
        return self._counterpart(variable, self.originals)

    def _counterpart(self, variable: Any, among: Sequence[Any]) -> Any:
        index = self._index.get(_plain(variable).ref())
        return variable if index is None else among[index]

    def refresh(self) -> None:
        """Read the weights again that others have written.

        Others may be less than their copies, which are not rounded.
        """
        now = [_on(v.device, _sample, v) for v in self.originals]
        with tf.device(self._transfer.device):
            written = [
                tf.reduce_any(tf.not_equal(sample, seen))
                for sample, seen in zip(now, self._seen, strict=True)
            ]
            tf.cond(
                tf.reduce_any(written),
                lambda: self._read(written, now),
                lambda: tf.constant(False),
            )

    def _read(self, written: Sequence[Any], now: Sequence[Any]) -> tf.Tensor:
        with tf.device(self._transfer.device):
            for i, copy in enumerate(self.copies):
                original = tf.identity(self.originals[i])
                copy.assign(tf.where(written[i], original, copy))
                self._seen[i].assign(now[i])
            return tf.constant(True)

    def gradient_down(self, gradient: Any, variable: Any) -> Any:
        """Return a gradient on the host, in float32 again."""
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            with tf.device(self._transfer.device):
                indices = tf.identity(gradient.indices)
            values = self._down(gradient.values, variable)
            return tf.IndexedSlices(values, indices, gradient.dense_shape)
        return self._down(gradient, variable)

    def _down(self, values: Any, variable: Any) -> tf.Tensor:
        original = self.original_of(variable)
        rounded = _on(original.device, tf.cast, values, self._transfer.down)
        with tf.device(self._transfer.device):
            return tf.cast(tf.identity(rounded), tf.float32)

    def weights_up(self, variables: Sequence[Any]) -> None:
        """Write copies to the weights they are of."""
        for variable in variables:
            index = self._index[_plain(variable).ref()]
            original, copy = self.originals[index], self.copies[index]
            with tf.device(self._transfer.device):
                rounded = tf.cast(copy.read_value(), self._transfer.up)
            with tf.device(original.device):
                original.assign(tf.cast(tf.identity(rounded), tf.float32))
            with tf.device(self._transfer.device):
                # After the assignment, which is noted as others' are.
                self._seen[index].assign(_sample(tf.cast(rounded, tf.float32)))


def _plain(variable: Any) -> Any:
    """Return the `tf.Variable` of a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _check(variable: Any) -> None:
    if variable.dtype != tf.float32:
        raise ConfigError(
            f"offload_optimizer: received the variable {variable.name!r} of type "
            f"{variable.dtype.name}; allowed is float32."
        )
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    if is_distributed or tf.distribute.has_strategy():
        raise ConfigError(
            "offload_optimizer: received variables of a tf.distribute strategy; "
            "allowed is one device, without a strategy."
        )


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
    return _places_among(int(values.shape.num_elements()))


@functools.cache
def _places_among(count: int) -> npt.NDArray[np.int64]:
    if count <= _SAMPLE:
        return np.arange(count)
    return np.unique(np.random.default_rng(0).integers(count, size=_SAMPLE))


def _on(device: str, function: Any, *args: Any) -> Any:
    with tf.device(device):
        return function(*args)
