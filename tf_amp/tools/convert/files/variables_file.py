"""The file of a stored model's variables: which tensors it holds, under which keys.

A key names a tensor in the file. Graphs name it where they restore it, objects by the
way to them from the root.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_object_graph_pb2 import SavedObjectGraph
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from grappler_pass.graph.walks import reached
from tf_amp.errors import ConversionError
from tf_amp.tools.convert.files.stored_models import VARIABLES, unreadable

_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"
# What TensorFlow raises, depending on where a file ends.
_UNREADABLE = (tf.errors.OpError, IndexError, RuntimeError, ValueError)


@dataclasses.dataclass(frozen=True)
class VariablesFile:
    """A reader of tensors by key, with what is known without reading them.

    The path is the prefix of the files' names; dtypes are names such as "float32".
    """

    path: pathlib.Path
    dtypes: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    _reader: Any

    @classmethod
    def of(cls, folder: pathlib.Path) -> VariablesFile | None:
        """Open the variables of a SavedModel; None where it has none."""
        path = folder / VARIABLES
        if not path.with_name(f"{path.name}.index").is_file():
            return None
        with unreadable(f"{path} is damaged or cut off", *_UNREADABLE):
            reader = tf.train.load_checkpoint(str(path))
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
        return cls(
            path,
            {key: str(dtype.name) for key, dtype in dtypes.items()},
            {key: tuple(shape) for key, shape in shapes.items()},
            reader,
        )

    def value(self, key: str) -> Any:
        """Return a tensor as a NumPy array; UnreadableModelError if it is damaged."""
        what = f"{self.path} is damaged or cut off: {key}"
        with unreadable(what, *_UNREADABLE):
            return self._reader.get_tensor(key)

    def check(self) -> None:
        """Read everything once, one tensor after another."""
        for key in self.dtypes:
            self.value(key)

    def keys_of_objects(self, objects: SavedObjectGraph) -> dict[int, str]:
        """Return by number of an object the key of its value, for variables."""
        if _OBJECTS not in self.dtypes:
            return {}
        saved = TrackableObjectGraph.FromString(self.value(_OBJECTS))

        def children_of(pair: tuple[int, int]) -> Iterator[tuple[int, int]]:
            own, other = pair
            below = {c.local_name: c.node_id for c in saved.nodes[other].children}
            for child in objects.nodes[own].children:
                if child.local_name in below:
                    yield child.node_id, below[child.local_name]

        return {
            own: str(attribute.checkpoint_key)
            for own, other in reached([(0, 0)], children_of, key=lambda pair: pair[0])
            for attribute in saved.nodes[other].attributes
            if attribute.name == _VALUE
        }

    def write(
        self, path: pathlib.Path, retyped: Collection[str], dtype: np.dtype[Any]
    ) -> None:
        """Write all tensors, some in another type, to files of another prefix."""
        path.parent.mkdir(parents=True, exist_ok=True)
        keys = sorted(self.dtypes)
        tensors = []
        with tf.device("/device:CPU:0"):
            for key in keys:
                value = self.value(key)
                if key in retyped:
                    value = value.astype(dtype)
                tensors.append(tf.constant(value))
            try:
                _save(str(path), keys, tensors)
            except tf.errors.OpError as error:
                raise ConversionError(
                    f"{path} cannot be written: {error.message}; nothing of it was "
                    "kept."
                ) from error


def _save(path: str, keys: list[str], tensors: list[Any]) -> None:
    part = f"{path}_part"
    tf.raw_ops.SaveV2(
        prefix=part,
        tensor_names=keys,
        shape_and_slices=[""] * len(keys),
        tensors=tensors,
    )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[part], destination_prefix=path, delete_old_dirs=False
    )
