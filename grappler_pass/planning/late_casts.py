"""Let a cast to float32 wait where only the backward pass reads it.

Before   conv(low) --> cast_up -----------------------> gradient(f32)
         conv(low) --> relu(low) --> ... --> dy ------> gradient(f32)
After    cast_up waits for dy: until then the 16-bit tensor is held, and no copy

The numbers stay the same, and so does what is computed. The step holds less, as a
tensor in 16 bits takes half of its copy.

Not done: where several operations read the copy, since the first may read it at once;
where the reader does not wait for what else the tensor leads to, as then the copy is
read soon; around loops and branches; for readers on other devices than what they wait
for.
"""

from __future__ import annotations

from grappler_pass.graph.op_table import CONTROL_FLOW_OPS
from grappler_pass.graph.type_slots import FLOAT32
from grappler_pass.graph.view import Graph, Node
from grappler_pass.planning.draft import CastPlan, Conversion


def with_late_casts(view: Graph, casts: CastPlan) -> CastPlan:
    """Return a cast plan in which casts that are read late wait for their reader."""
    reader_of = {
        number: reader
        for number, conversion in enumerate(casts.conversions)
        if (reader := _only_reader(view, conversion)) is not None
    }
    if not reader_of:
        return casts
    # Bit number k of a node: whether what conversion k reads leads to it.
    begins = [0] * len(view.nodes)
    for number in reader_of:
        begins[casts.conversions[number].source.node] |= 1 << number
    behind = [0] * len(view.nodes)
    place = {index: number for number, index in enumerate(view.order)}
    for index in view.order:
        for source in view.nodes[index].sources:
            behind[index] |= behind[source] | begins[source]
    conversions = list(casts.conversions)
    for number, reader in reader_of.items():
        conversion = conversions[number]
        others = {port.node for port in reader.inputs} - {conversion.port.node}
        late = [
            other
            for other in others
            if behind[other] >> number & 1
            and view.nodes[other].device == reader.device
            and view.frame(other) == view.frame(reader.index)
        ]
        if late:
            last = max(late, key=place.__getitem__)
            waits_for = *conversion.waits_for, last
            conversions[number] = conversion._replace(waits_for=waits_for)
    return casts._replace(conversions=tuple(conversions))


def _only_reader(view: Graph, conversion: Conversion) -> Node | None:
    """Return the one node that reads a cast to float32; None for other conversions."""
    readers = {reader.node for reader in conversion.readers}
    if not conversion.is_cast or conversion.target_dtype != FLOAT32 or len(readers) > 1:
        return None
    node = view.nodes[readers.pop()]
    is_near = view.frame(node.index) == view.frame(conversion.source.node)
    return node if is_near and node.op not in CONTROL_FLOW_OPS else None
