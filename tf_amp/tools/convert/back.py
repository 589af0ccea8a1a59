"""Keep the structure of a model as it was, and take it back to that, in float32.

Large constants are left out: their nodes are still in the converted graph, under the
same names, in float32 or in 16 bits.
"""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import tensor_util

from grappler_pass.functions.conversion import bodies_of
from tf_amp.errors import AlreadyMixedError, UnreadableModelError
from tf_amp.tools.convert.files import stored_models
from tf_amp.tools.convert.files.variables_file import VariablesFile
from tf_amp.tools.convert.report import JSON_FILE

_FILE = "original.pb.gz"
_LEFT_OUT = "_left_out"
_LARGE_BYTES = 1024

_Proto = TypeVar("_Proto", bound=Any)


def keep(original: Any, graphs: Iterable[GraphDef], extras: pathlib.Path) -> None:
    """Write a model's protobuf into the folder of its report.

    It is changed in place: large constants of the graphs within lose their values.
    """
    for graph_def in graphs:
        for node in _constants(graph_def).values():
            if node.attr["value"].tensor.ByteSize() > _LARGE_BYTES:
                node.attr["value"].Clear()
                node.attr[_LEFT_OUT].b = True
    written = gzip.compress(original.SerializeToString(), mtime=0)
    (extras / _FILE).write_bytes(written)


def frozen_graph_back(given: pathlib.Path, draft: pathlib.Path) -> None:
    """Write what a converted frozen graph was to a file."""
    converted = stored_models.frozen_graph(given)
    original = _kept(stored_models.frozen_extras(given), type(converted)())
    _fill_constants(original, converted)
    draft.write_bytes(original.SerializeToString())


def saved_model_back(given: pathlib.Path, draft: pathlib.Path) -> None:
    """Write what a converted SavedModel was to a folder that does not exist yet."""
    converted = stored_models.saved_model(given)
    extras = given / stored_models.EXTRAS
    original = _kept(extras, type(converted)())
    for own, other in zip(original.meta_graphs, converted.meta_graphs, strict=True):
        _fill_constants(own.graph_def, other.graph_def)
    file = VariablesFile.of(given)
    stored_models.write_saved_model(original, given, draft, variables=file is None)
    if file is not None:
        stored = _report(extras).get("storage", {}).get("variables", ())
        target = draft / stored_models.VARIABLES
        file.write(target, frozenset(stored), np.dtype(np.float32))


def refuse_converted(extras: pathlib.Path) -> None:
    """Raise AlreadyMixedError for a model with the report of a conversion beside it."""
    if not (extras / JSON_FILE).is_file():
        return
    report = _report(extras)
    stored = report.get("storage", {})
    counts = {name: len(stored.get(name, ())) for name in ("variables", "constants")}
    counts["inputs and outputs"] = len(report.get("low_io", ()))
    if any(counts.values()):
        listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        raise AlreadyMixedError(
            f"tf-amp has converted the model already: {listed} are in "
            f"{report['low_dtype']}; it was left as it is. It goes back to float32 "
            "with --to float32."
        )


def _report(extras: pathlib.Path) -> dict[str, Any]:
    path = extras / JSON_FILE
    with stored_models.unreadable(f"{path} cannot be read", OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _kept(extras: pathlib.Path, proto: _Proto) -> _Proto:
    """Fill a protobuf with what `keep` wrote, large constants still left out."""
    path = extras / _FILE
    if not path.is_file():
        raise UnreadableModelError(
            f"there is no {path}: only a model that tf-amp has converted, with all "
            "that was written beside it, goes back to float32."
        )
    errors = (OSError, EOFError, DecodeError)
    with stored_models.unreadable(f"{path} is damaged", *errors):
        proto.ParseFromString(gzip.decompress(path.read_bytes()))
    return proto


def _fill_constants(original: GraphDef, converted: GraphDef) -> None:
    """Put the values left out, in float32, back into `original`, in place."""
    found = _constants(converted)
    for key, node in _constants(original).items():
        if _LEFT_OUT not in node.attr:
            continue
        if key not in found:
            raise UnreadableModelError(
                f"constant {key[1]!r} is gone from the converted model; it was "
                "changed since it was written."
            )
        del node.attr[_LEFT_OUT]
        node.attr["value"].CopyFrom(found[key].attr["value"])
        _restore_type(node)


def _restore_type(node: NodeDef) -> None:
    """Make the value of a constant one of the type that its node says."""
    proto = node.attr["value"].tensor
    wanted = node.attr["dtype"].type
    if proto.dtype == wanted:
        return
    value = tensor_util.MakeNdarray(proto).astype(np.float32)
    proto.CopyFrom(tensor_util.make_tensor_proto(value, dtype=wanted))


def _constants(graph_def: GraphDef) -> Mapping[tuple[str, str], NodeDef]:
    return {
        (function, str(node.name)): node
        for function, nodes in bodies_of(graph_def).items()
        for node in nodes
        if node.op == "Const"
    }
