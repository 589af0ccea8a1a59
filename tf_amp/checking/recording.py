"""Have a graph tell of its tensors while it runs, wherever it runs.

Before   a --> b, c
After    a --> record (Python);  a --> Identity(waits for record) --> b, c

Records are made in the loop or branch that the tensor is in, so that what does not run
is not seen. Results stay what they are, bit by bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph import split_input
from grappler_pass.type_slots import FLOAT32
from tf_amp.checking.differences import Array

# In the names of the nodes that are added.
RECORDER = "tf_amp_record"
Record = Callable[[Array, Array], None]


class Recorder:
    """A Python function that graphs call; it must live as long as they run."""

    def __init__(self, record: Record) -> None:
        """Have `record` called with the number of a tensor, and its value."""
        # TensorFlow keeps the function while it keeps the graph that it is in.
        self._graph = tf.Graph()
        with self._graph.as_default():
            number = tf.compat.v1.placeholder(tf.int64, [])
            value = tf.compat.v1.placeholder(tf.float32)
            call = tf.numpy_function(record, [number, value], [], name=RECORDER)
        self._call: NodeDef = call.node_def

    def node(
        self, name: str, device: str, number: str, value: str, *, dtype: int = FLOAT32
    ) -> NodeDef:
        """Return a node that calls the function.

        Args:
          name: of the node.
          device: of the tensor.
          number: input string of the tensor's number.
          value: input string of the tensor.
          dtype: of the tensor, DataType enum.
        """
        made = NodeDef(name=name, op=self._call.op, device=_host(device))
        for key in ("token", "Tin", "Tout", "is_async"):
            if key in self._call.attr:
                made.attr[key].CopyFrom(self._call.attr[key])
        made.attr["Tin"].list.type[1] = dtype
        made.input.extend([number, value])
        return made


@dataclasses.dataclass(frozen=True)
class Tap:
    """A tensor to record.

    Attributes:
      number: that it is recorded under.
      text: its name in the graph: `node`, or `node:output`.
      dtype: of its values, DataType enum.
      holder: op that reads the values, of a handle or a reference; empty of a tensor.
    """

    number: int
    text: str
    dtype: int = FLOAT32
    holder: str = ""


READ, DEREFERENCE = "ReadVariableOp", "Identity"


def with_records(
    graph_def: GraphDef, taps: Iterable[Tap], recorder: Recorder
) -> GraphDef:
    """Return a copy of a graph that tells of some of its tensors.

    Whoever else reads a variable's handle, to change it as well, waits for the record.

    Args:
      graph_def: not modified.
      taps: what to tell of; what the graph does not hold, or read, is left out.
      recorder: what is called.
    """
    recording = GraphDef()
    recording.CopyFrom(graph_def)
    nodes = {node.name: node for node in graph_def.node}
    read = {_canonical(text) for node in graph_def.node for text in node.input}
    instead: dict[str, str] = {}
    added: list[NodeDef] = []
    for tap in taps:
        producer = nodes.get(split_input(tap.text)[0])
        if producer is not None and _canonical(tap.text) in read:
            made = _recording_nodes(tap, producer, recorder)
            instead[_canonical(tap.text)] = made[-1].name
            added.extend(made)
    for node in recording.node:
        node.input[:] = [instead.get(_canonical(text), text) for text in node.input]
    recording.node.extend(added)
    return recording


def _recording_nodes(tap: Tap, producer: NodeDef, recorder: Recorder) -> list[NodeDef]:
    """Return the nodes that tell of a tensor; the last one hands it on."""
    name, output = split_input(tap.text)
    device, made = producer.device, []
    stem = f"{name}/{RECORDER}_{output}"
    # Waiting for the tensor puts the constant into the right loop or branch.
    number = NodeDef(name=f"{stem}/number", op="Const", device=_host(device))
    number.attr["dtype"].type = tf.int64.as_datatype_enum
    number.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.int64(tap.number)))
    number.input.append(f"^{name}")
    made.append(number)
    value = tap.text
    if tap.holder:
        value = f"{stem}/value"
        read = NodeDef(name=value, op=tap.holder, device=device, input=[tap.text])
        read.attr["dtype" if tap.holder == READ else "T"].type = tap.dtype
        made.append(read)
    record = f"{stem}/record"
    made.append(recorder.node(record, device, number.name, value, dtype=tap.dtype))
    made.append(_passing(tap, producer, stem, record))
    return made


def _passing(tap: Tap, producer: NodeDef, name: str, record: str) -> NodeDef:
    """Return the node that hands a tensor on once it is recorded."""
    is_reference = tap.holder == DEREFERENCE
    op = "RefIdentity" if is_reference else "Identity"
    passed = NodeDef(name=name, op=op, device=producer.device)
    is_handle = tap.holder == READ
    passed.attr["T"].type = _RESOURCE if is_handle else tap.dtype
    passed.input.extend([tap.text, f"^{record}"])
    return passed


_RESOURCE = tf.resource.as_datatype_enum


def _canonical(text: str) -> str:
    """Return one spelling for `node` and `node:0`; control inputs as they are."""
    return text[:-2] if text.endswith(":0") else text


def _host(device: str) -> str:
    """Return the CPU beside a device."""
    before, slash, last = device.rpartition("/")
    return f"{before}{slash}device:CPU:0" if last else "/device:CPU:0"
