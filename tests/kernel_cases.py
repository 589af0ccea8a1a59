"""A kernel of TensorFlow with shapes and attributes, as a line of text and back."""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any

Shape = tuple[int, ...]

_LINE = re.compile(r"(\w+)\((.*)\)((?: > \w+)*) \[(\w+)\]")


@dataclasses.dataclass(frozen=True)
class KernelCase:
    """An op of tf.raw_ops, or of `kernel_calls.COMPOSITES`, and what it is called with.

    Attributes:
      op: its name.
      operands: name and shape of each, those of the steps behind it included.
      attributes: the other arguments, by name.
      then: steps behind it, of `kernel_calls.STEPS`, for TensorFlow to fuse.
      mode: eager, fused (in a tf.function) or xla.
    """

    op: str
    operands: tuple[tuple[str, Shape], ...]
    attributes: tuple[tuple[str, Any], ...] = ()
    then: tuple[str, ...] = ()
    mode: str = "eager"

    def __str__(self) -> str:
        """Return the line that `parsed` reads."""
        operands = [f"{name}:{_joined(shape)}" for name, shape in self.operands]
        attributes = [f"{n}={v!r}".replace(" ", "") for n, v in self.attributes]
        steps = "".join(f" > {step}" for step in self.then)
        return f"{self.op}({', '.join(operands + attributes)}){steps} [{self.mode}]"


def parsed(line: str) -> KernelCase:
    """Return the case that prints as `line`."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"{line!r} is no case; one looks like {_EXAMPLE}")
    op, arguments, steps, mode = match.groups()
    operands: list[tuple[str, Shape]] = []
    attributes: list[tuple[str, Any]] = []
    for argument in arguments.split(", "):
        name, sign, value = re.split("([:=])", argument, maxsplit=1)
        if sign == ":":
            operands.append((name, tuple(int(n) for n in value.split("x") if n)))
        else:
            attributes.append((name, ast.literal_eval(value)))
    then = tuple(step for step in steps.split(" > ") if step)
    return KernelCase(op, tuple(operands), tuple(attributes), then, mode)


def _joined(shape: Shape) -> str:
    """Return 2x3 for (2, 3), and nothing for a scalar's."""
    return "x".join(map(str, shape))


_EXAMPLE = str(KernelCase("Relu", (("features", (2, 3)),), then=("Tanh",)))
