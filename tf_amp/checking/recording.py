"""Have a graph tell of its tensors while it runs, wherever it runs.

Before   a --> b, c
After    a --> record (Python);  a --> Identity(waits for record) --> b, c

Records are made in the loop or branch that the tensor is in, so that what does not run
is not seen. Results stay what they are, bit by bit.
"""

from __future__ import annotations

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
    """A function that graphs call; it must live as long as they run."""

    def __init__(self, record: Record) -> None:
        """Have `record` called with the number of a tensor, and its value."""
        # TensorFlow keeps the function while it keeps the graph that it is in.
        self._graph = tf.Graph()
        with self._graph.as_default():
            number = tf.compat.v1.placeholder(tf.int64, [])
            value = tf.compat.v1.placeholder(tf.float32)
            call = tf.numpy_function(record, [number, value], [], name=RECORDER)
        self._call: NodeDef = call.node_def

    def node(self, name: str, device: str, number: str, value: str) -> NodeDef:
        """Return a node that calls the function.

        Args:
          name: of the node.
          device: of the tensor.
          number: input string of the tensor's number.
          value: input string of the tensor.
        """
        made = NodeDef(name=name, op=self._call.op, device=_host(device))
        for key in ("token", "Tin", "Tout", "is_async"):
            if key in self._call.attr:
                made.attr[key].CopyFrom(self._call.attr[key])
        made.input.extend([number, value])
        return made


def with_records(
    graph_def: GraphDef, tensors: Iterable[tuple[int, str]], recorder: Recorder
) -> GraphDef:
    """Return a copy of a graph that tells of some of its tensors.

    Args:
      graph_def: not modified.
      tensors: number and name of each: `node`, or `node:output`; what the graph does
        not hold is left out.
      recorder: what is called.
    """
    recording = GraphDef()
    recording.CopyFrom(graph_def)
    devices = {node.name: node.device for node in graph_def.node}
    read = {_canonical(text) for node in graph_def.node for text in node.input}
    instead: dict[str, str] = {}
    added: list[NodeDef] = []
    for number, text in tensors:
        name = split_input(text)[0]
        if name in devices and _canonical(text) in read:
            made = _recording_nodes(number, text, devices[name], recorder)
            instead[_canonical(text)] = made[-1].name
            added.extend(made)
    for node in recording.node:
        node.input[:] = [instead.get(_canonical(text), text) for text in node.input]
    recording.node.extend(added)
    return recording


def _recording_nodes(
    number: int, text: str, device: str, recorder: Recorder
) -> tuple[NodeDef, NodeDef, NodeDef]:
    name, output = split_input(text)
    stem = f"{name}/{RECORDER}_{output}"
    # Waiting for the tensor puts the constant into the right loop or branch.
    wait = NodeDef(name=f"{stem}/number", op="Const", device=_host(device))
    wait.attr["dtype"].type = tf.int64.as_datatype_enum
    wait.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.int64(number)))
    wait.input.append(f"^{name}")
    record = recorder.node(f"{stem}/record", device, wait.name, text)
    passed = NodeDef(name=stem, op="Identity", device=device)
    passed.attr["T"].type = FLOAT32
    passed.input.extend([text, f"^{record.name}"])
    return wait, record, passed


def _canonical(text: str) -> str:
    """Return one spelling for `node` and `node:0`; control inputs as they are."""
    return text[:-2] if text.endswith(":0") else text


def _host(device: str) -> str:
    """Return the CPU beside a device."""
    before, slash, last = device.rpartition("/")
    return f"{before}{slash}device:CPU:0" if last else "/device:CPU:0"
