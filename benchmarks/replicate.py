"""Make a large graph out of copies of a small one."""

from collections.abc import Iterable

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

_LOCATION = b"loc:@"


def replicated(graph_def: GraphDef, copies: int) -> GraphDef:
    """Return a graph of independent copies, named ``copy0/...`` and so on."""
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for number in range(copies):
        result.node.extend(_renamed(graph_def.node, f"copy{number}/"))
    return result


def _renamed(nodes: Iterable[NodeDef], prefix: str) -> Iterable[NodeDef]:
    for node in nodes:
        copy = NodeDef()
        copy.CopyFrom(node)
        copy.name = prefix + node.name
        copy.input[:] = [_with_prefix(each, prefix) for each in node.input]
        if "_class" in copy.attr:
            places = copy.attr["_class"].list.s
            places[:] = [_located(place, prefix) for place in places]
        yield copy


def _with_prefix(name: str, prefix: str) -> str:
    return f"^{prefix}{name[1:]}" if name.startswith("^") else prefix + name


def _located(place: bytes, prefix: str) -> bytes:
    if not place.startswith(_LOCATION):
        return place
    return _LOCATION + prefix.encode() + place.removeprefix(_LOCATION)
