"""Have a graph report its tensors while it runs, wherever it runs.

Before   a --> b, c
After    a --> record (Python);  a --> Identity(waits for record) --> b, c

Records are made in the loop or branch that the tensor is in, so that what does not run
is not seen. Results stay what they are, bit by bit.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.editing import (
    name_in,
    new_constant,
    new_node,
    split_input,
    texts_of,
)
from grappler_pass.graph.type_slots import FLOAT32
from tf_amp.run.graph_copy import Array

# In the names of the nodes that are added.
RECORDER = "tf_amp_record"
# Gets the values of a tensor, one run after another, on any thread.
Receiver = Callable[[Array], None]


class Recorder:
    """A Python function that graphs call; it must live as long as they run."""

    def __init__(self) -> None:
        """Know of no receiver yet."""
        self._receivers: dict[int, Receiver] = {}
        self._numbers = itertools.count()
        # TensorFlow keeps the function while it keeps the graph that it is in.
        self._graph = tf.Graph()
        with self._graph.as_default():
            number = tf.compat.v1.placeholder(tf.int64, [])
            value = tf.compat.v1.placeholder(tf.float32)
            call = tf.numpy_function(self._record, [number, value], [], name=RECORDER)
        self._call: NodeDef = call.node_def

    def _record(self, number: Array, value: Array) -> None:
        self._receivers[int(number)](value)

    def number_of(self, receiver: Receiver) -> int:
        """Return the number by which the function passes values to a receiver."""
        number = next(self._numbers)
        self._receivers[number] = receiver
        return number

    def node(
        self, name: str, device: str, number: str, value: str, *, dtype: int = FLOAT32
    ) -> NodeDef:
        """Return a node that calls the function with a tensor's number, and the tensor.

        Both are inputs as strings; of the tensor come device and DataType.
        """
        made = NodeDef(
            name=name, op=self._call.op, device=_host(device), input=[number, value]
        )
        for key in ("token", "Tin", "Tout", "is_async"):
            if key in self._call.attr:
                made.attr[key].CopyFrom(self._call.attr[key])
        made.attr["Tin"].list.type[1] = dtype
        return made


@dataclasses.dataclass(frozen=True)
class Tap:
    """A tensor to record.

    Attributes:
      receiver: of its values.
      text: its name in the graph: `node`, or `node:output`.
      dtype: of its values, DataType enum.
      holder: op that reads the values, of a handle or a reference; empty of a tensor.
      in_loop: whether it is made in the frame of a loop.
    """

    receiver: Receiver
    text: str
    dtype: int = FLOAT32
    holder: str = ""
    in_loop: bool = False


@dataclasses.dataclass(frozen=True)
class Records:
    """The tensors of a graph to record.

    `begin` receives zero as a run begins, before all else; None: no one does. Values
    enter loops from outside of any through the nodes named.
    """

    taps: tuple[Tap, ...]
    begin: Receiver | None = None
    loops: frozenset[str] = frozenset()


READ, DEREFERENCE = "ReadVariableOp", "Identity"


def with_records(graph_def: GraphDef, records: Records, recorder: Recorder) -> GraphDef:
    """Return a copy of a graph that reports some of its tensors.

    Whoever else reads a variable's handle, to change it as well, waits for the record.
    What the graph does not hold, or read, is left out.
    """
    recording = copy.deepcopy(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    read = {text for node in graph_def.node for text in texts_of(node)}
    instead: dict[str, str] = {}
    # In a function that is placed already every node must name its whole device.
    device = next((node.device for node in graph_def.node if node.device), "")
    added: list[NodeDef] = []
    begin = ""
    if records.begin is not None:
        place = recorder.number_of(records.begin)
        begin, stem = f"x/{RECORDER}_begin", f"{RECORDER}_begin"
        at = _host(device)
        number = new_constant(f"{stem}/number", np.int64(place), device=at)
        value = new_constant(f"{stem}/value", np.float32(0.0), device=at)
        reporting = recorder.node(begin, device, number.name, value.name)
        added += [number, value, reporting]
    for tap in records.taps:
        producer, text = nodes.get(name_in(tap.text)), tap.text.removesuffix(":0")
        if producer is not None and text in read:
            added.extend(_recording_nodes(tap, producer, recorder, begin))
            instead[text] = added[-1].name
    for node in recording.node:
        node.input[:] = [instead.get(text, text) for text in texts_of(node)]
        if begin and node.name in records.loops:
            node.input.append(f"^{begin}")
    recording.node.extend(added)
    return recording


def _recording_nodes(
    tap: Tap, producer: NodeDef, recorder: Recorder, begin: str
) -> Iterator[NodeDef]:
    """Yield the nodes that report a tensor; the last one hands it on."""
    name, output = split_input(tap.text)
    device, stem = producer.device, f"{name}/{RECORDER}_{output}"
    place = recorder.number_of(tap.receiver)
    # Waiting for the tensor puts the constant into the right loop or branch.
    waits = [f"^{name}"]
    if begin and not tap.in_loop:
        waits.append(f"^{begin}")
    number = new_constant(
        f"{stem}/number", np.int64(place), inputs=waits, device=_host(device)
    )
    yield number
    value = tap.text
    if tap.holder:
        value = f"{stem}/value"
        dtype = {"dtype" if tap.holder == READ else "T": tap.dtype}
        yield new_node(tap.holder, value, [tap.text], device, **dtype)
    record = f"{stem}/record"
    yield recorder.node(record, device, number.name, value, dtype=tap.dtype)
    op = "RefIdentity" if tap.holder == DEREFERENCE else "Identity"
    passed = _RESOURCE if tap.holder == READ else tap.dtype
    yield new_node(op, stem, [tap.text, f"^{record}"], device, T=passed)


_RESOURCE = tf.resource.as_datatype_enum


def _host(device: str) -> str:
    """Return the CPU beside a device."""
    before, slash, last = device.rpartition("/")
    return f"{before}{slash}device:CPU:0" if last else "/device:CPU:0"
