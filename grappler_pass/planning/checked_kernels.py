"""The 16-bit kernels that a plan uses, and whether they compute right numbers."""

from __future__ import annotations

from collections.abc import Callable

from grappler_pass.graph.type_slots import SlotTable
from grappler_pass.graph.view import Node
from grappler_pass.kernels.geometry import channels_last
from grappler_pass.kernels.kernel import Kernel, kernel_of
from grappler_pass.kernels.known_wrong import may_be_wrong
from grappler_pass.kernels.needs_check import needs_check
from grappler_pass.planning.draft import Draft


def fault_of(draft: Draft) -> Callable[[SlotTable, Node], str]:
    """Return what tells why the 16-bit kernel of a node may not be used, if so."""
    settings, kernels = draft.settings, draft.settings.kernels

    def fault(slots: SlotTable, node: Node) -> str:
        if kernels is None or not may_be_wrong(node.op):
            return ""
        kernel = _kernel(draft, slots, node)
        return kernels.fault(kernel, compiled=settings.fuses)

    return fault


def _kernel(draft: Draft, slots: SlotTable, node: Node) -> Kernel:
    """Return the kernel of a node in the layout that it will have in 16 bits."""
    kernel = kernel_of(draft.view, slots, draft.shapes, node, draft.low_dtype)
    is_laid_out = draft.settings.layouts is not None and kernel.device_type == "GPU"
    return channels_last(kernel) if is_laid_out else kernel


def to_check(draft: Draft) -> list[Kernel]:
    """Return the kernels of a colored draft that are to be checked, each once.

    XLA's own are not: what it compiles was found to be right.
    """
    if draft.settings.kernels is None or draft.settings.fuses:
        return []
    nodes = (draft.view.nodes[node] for node in sorted(draft.low_nodes))
    kernels = (_kernel(draft, draft.slots, n) for n in nodes if may_be_wrong(n.op))
    return list({k.key: k for k in kernels if needs_check(k)}.values())


def is_wrong(draft: Draft) -> bool:
    """Have the kernels of a draft checked; return whether any has turned out wrong."""
    kernels, wanted = draft.settings.kernels, to_check(draft)
    return kernels is not None and bool(wanted) and kernels.check(wanted)


def unchecked(draft: Draft) -> str:
    """Say which kernels of a plan have not been checked; "" where all have."""
    kernels, wanted = draft.settings.kernels, to_check(draft)
    return kernels.unchecked(wanted) if kernels is not None and wanted else ""
