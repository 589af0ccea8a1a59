"""An op with all that is needed to run it alone: what is measured and remembered.

A price is asked for calls (`OpCall`), which know only what pricing by class needs. A
probe knows every attribute, and the values of small constant operands such as a
permutation, so that two probes with one key take the same time on one device.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.costs.calls import TensorSpec

# Stands for the dtype that a probe is measured at.
MEASURED_DTYPE = "*"


class Constant(NamedTuple):
    """The values of a small operand, flat; `dtype` is TensorFlow's name."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[int | float | bool, ...]


@dataclass(frozen=True)
class Probe:
    """One op to run.

    Attributes:
        op: its name.
        attrs: name and value of every public attribute that is no measured dtype,
            sorted by name; the value is an AttrValue as one line of text format.
        dtype_attrs: attributes, with the index where it is a list of types (else 0),
            that take the dtype it is measured at.
        inputs: shapes, all known; the dtype is MEASURED_DTYPE where it may change.
        constants: inputs whose values matter, by position.
    """

    op: str
    attrs: tuple[tuple[str, str], ...]
    dtype_attrs: tuple[tuple[str, int], ...]
    inputs: tuple[TensorSpec, ...]
    constants: tuple[tuple[int, Constant], ...] = ()

    @cached_attribute
    def key(self) -> str:
        """The probe as JSON on one line: equal probes, equal keys."""
        return json.dumps(
            {
                "op": self.op,
                "attrs": dict(self.attrs),
                "dtype_attrs": self.dtype_attrs,
                "inputs": [[spec.dtype, spec.shape] for spec in self.inputs],
                "constants": [
                    [position, each.dtype, each.shape, each.values]
                    for position, each in self.constants
                ],
            },
            sort_keys=True,
            separators=(",", ":"),
        )

    @classmethod
    def from_key(cls, key: str) -> Probe:
        """Read what `key` wrote; anything else may raise whatever it leads to."""
        plain = json.loads(key)
        return cls(
            op=str(plain["op"]),
            attrs=tuple(sorted((str(n), str(v)) for n, v in plain["attrs"].items())),
            dtype_attrs=tuple((str(n), int(i)) for n, i in plain["dtype_attrs"]),
            inputs=tuple(
                TensorSpec(tuple(int(size) for size in shape), str(dtype))
                for dtype, shape in plain["inputs"]
            ),
            constants=tuple(
                (
                    int(position),
                    Constant(str(dtype), tuple(map(int, shape)), tuple(values)),
                )
                for position, dtype, shape, values in plain["constants"]
            ),
        )


def cast_probe(elements: int, source: str, target: str) -> Probe:
    """Return the probe of a cast of `elements` values between two named dtypes.

    It is remembered under the dtype it casts to.
    """
    enums = {"float32": "DT_FLOAT", "bfloat16": "DT_BFLOAT16", "float16": "DT_HALF"}
    attrs = (
        ("DstT", f"type: {enums[target]}"),
        ("SrcT", f"type: {enums[source]}"),
        ("Truncate", "b: false"),
    )
    return Probe("Cast", attrs, (), (TensorSpec((elements,), source),))
