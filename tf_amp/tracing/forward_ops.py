"""What the operation being made is a gradient of, and whether it stays float32.

TensorFlow runs an operation's gradient function in one of three places: walking a graph
(`tf.gradients`, bodies of loops, functions differentiated from outside), on a tape, and
as the closure that `tf.custom_gradient` gave the tape. Each is wrapped here, and what
is made meanwhile is marked with the names of the operations it is a gradient of, and
stays float32 where these do. Sums of several gradients belong to no single operation
and get no mark.

The names are kept with the operation in Python. They are written into the graph only
where names decide what is excluded: TensorFlow takes no two nodes for equal, and merges
none, whose attributes differ.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable
from typing import Any

from grappler_pass.annotations import FLOAT32, FORWARD
from grappler_pass.cached_attributes import cached_attribute
from tf_amp._tensorflow_private import Method, wrapping
from tf_amp._tensorflow_private.tracing import attribute_of, put_attribute
from tf_amp.tracing.bypass import holding

# In the attributes that a tape keeps of an operation.
_TAPE_KEY = "_tf_amp_operation"


@dataclasses.dataclass(frozen=True)
class Forward:
    """What a gradient belongs to.

    Attributes:
      names: of the operation, and of those that it is itself a gradient of.
      float32: why the operation was to stay float32; "" where it was not.
    """

    names: tuple[str, ...]
    float32: str

    @cached_attribute
    def attribute(self) -> Any:
        """The names as an AttrValue."""
        from tensorflow.core.framework.attr_value_pb2 import AttrValue

        names = [name.encode() for name in self.names]
        return AttrValue(list=AttrValue.ListValue(s=names))


_current: contextvars.ContextVar[Forward | None] = contextvars.ContextVar(
    "tf_amp_forward", default=None
)


def mark(op: Any, why_float32: str, goes_by_names: bool) -> None:
    """Put on a new operation what is known of it.

    Args:
      op: the operation.
      why_float32: why it stays float32 for its own sake; "" if it need not.
      goes_by_names: whether what it is a gradient of may exclude it by its name.
    """
    forward = _current.get()
    if forward is not None:
        op._tf_amp_forward = forward
        if goes_by_names:
            op._set_attr(FORWARD, forward.attribute)
    why = why_float32 or (forward.float32 if forward is not None else "")
    if why:
        put_attribute(op, FLOAT32, s=why.encode())


def why_float32(op: Any) -> str:
    """Return why an operation is marked to stay float32; "" where it is not."""
    return (attribute_of(op, FLOAT32) or b"").decode()


def forward_from(op: Any) -> Forward:
    """Return what gradients of an operation belong to."""
    own: Forward | None = getattr(op, "_tf_amp_forward", None)
    return Forward((op.name, *(own.names if own else ())), why_float32(op))


def following(
    adopt: Callable[[Any], None], op_of: Callable[[Any], Any] = lambda op: op
) -> Callable[[Method], Method]:
    """Return what wraps a function that calls gradient functions.

    That is `_MaybeCompile` in a walk over a graph, and what a tape calls for each
    operation it has recorded.

    Args:
      adopt: called with each operation that is differentiated.
      op_of: returns it, given the function's second argument; None: it is not known.
    """

    def differentiate(function: Method, name: Any, given: Any, *args: Any) -> Any:
        op = op_of(given)
        if op is None:
            return function(name, given, *args)
        adopt(op)
        with holding(_current, forward_from(op)):
            return function(name, given, *args)

    return wrapping(differentiate)


@wrapping
def recording(
    record_gradient: Callable[..., None],
    name: Any,
    inputs: Any,
    attrs: Any,
    outputs: Any,
) -> None:
    """Call `record_gradient` so that a tape knows the operation, not its type only."""
    made = _made_op(outputs)
    if made is not None:
        attrs = (*attrs, _TAPE_KEY, _Recorded(made))
    record_gradient(name, inputs, attrs, outputs)


@wrapping
def remembering(
    record_operation: Callable[..., None],
    op_type: Any,
    output_tensors: Any,
    input_tensors: Any,
    backward_function: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Call `record_operation`, which gives a tape a closure that makes gradients."""
    made = _made_op(output_tensors)
    if made is not None:
        own = holding(_current, forward_from(made))
        backward_function = own(backward_function)
    given = (op_type, output_tensors, input_tensors, backward_function)
    record_operation(*given, *args, **kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class _Recorded:
    """An operation among a tape's attributes, which serve as the key of a cache."""

    op: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Recorded)

    def __hash__(self) -> int:
        return hash(_Recorded)


def _made_op(outputs: Any) -> Any | None:
    """Return the operation of a graph that made some tensors; None of eager ones."""
    first = outputs[0] if isinstance(outputs, list | tuple) and outputs else outputs
    try:
        return first.op
    except AttributeError:
        return None


def recorded_op(attrs: Any) -> Any | None:
    """Return the operation in the attributes that a tape keeps; None of eager ones."""
    if attrs and len(attrs) > 1 and attrs[-2] == _TAPE_KEY:
        return attrs[-1].op
    return None
