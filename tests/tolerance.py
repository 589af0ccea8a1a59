"""How far a result may move when a graph goes to 16 bits, or is fused in float32.

The yardstick is the float32 graph itself with every intermediate value rounded to the
16-bit type: what rounding alone does to this program, cancellation, depth and loops
included. A correct rewriting stays within a small multiple of it. A program whose
controls move too far to tell right from wrong is checked for soundness only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.view import Item
from tests.programs import Program, is_floating, run, with_state
from tests.soundness import FLOAT32, LOW_DTYPES, output_dtypes, split_inputs

# In float32, of kernels: Adam's is off by as much, where it rounds 1 - 0.999.
EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-16}
# The distance of neighbors near zero; what is smaller than that is lost.
SMALLEST = {"bfloat16": 2.0**-133, "float16": 2.0**-24, "float32": 2.0**-149}
# Rounding x * factor / factor gives independent samples of the rounding error.
CONTROL_FACTORS = (1.0, 1.375, 1.8125)
CONTROL_MULTIPLE = 8.0
CHAOTIC = 0.25

_NOT_ROUNDED = frozenset(
    """Const Placeholder PlaceholderWithDefault VariableV2 Variable VarHandleOp
    ReadVariableOp Identity IdentityN Enter RefEnter Exit Merge Switch NextIteration
    LoopCond If While StatelessIf StatelessWhile Case PartitionedCall
    StatefulPartitionedCall SymbolicGradient Cast Shape Size Rank Range Fill NoOp
    StopGradient Snapshot ZerosLike OnesLike TensorArrayV3 TensorArrayWriteV3
    TensorArrayScatterV3 TensorArrayGradV3 TensorArraySplitV3 StackV2 StackPushV2
    StackPopV2 _Arg _Retval""".split()
)
_ELEMENTWISE = frozenset("Mul Add AddV2 Sub RealDiv Cast Identity Reshape".split())
_UPDATES = (
    "Assign",
    "Apply",
    "SparseApply",
    "ScatterAdd",
    "ScatterSub",
    "ScatterUpdate",
    "ScatterNdUpdate",
    "ResourceApply",
    "ResourceSparseApply",
    "ResourceScatter",
)
_PRODUCTS = ("MatMul", "Conv", "Einsum", "_Fused", "Depthwise")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The worst result: error and what it may be, both relative to its magnitude."""

    error: float
    allowed: float
    where: int
    chaotic: bool

    @property
    def ok(self) -> bool:
        """Return whether the results agree, as far as can be told."""
        return self.chaotic or self.error <= self.allowed

    def __str__(self) -> str:
        """Show both numbers and the result's position in fetches then state."""
        return f"result {self.where}: {self.error:.3g} off, {self.allowed:.3g} allowed"


def compare(
    after: Sequence[np.ndarray],
    before: Sequence[np.ndarray],
    controls: Sequence[Sequence[np.ndarray]],
    *,
    low_dtype: str,
    depth: int,
) -> Comparison:
    """Compare every result with its float32 value; return the worst.

    A result may be off by CONTROL_MULTIPLE times what the worst control is off, plus
    epsilon times the square root of the depth times its largest magnitude, plus the
    smallest number of the 16-bit type as often as there are roundings. What is not
    floating, and what no control moves at all because it holds exact numbers, must be
    equal.
    """
    assert len(after) == len(before)
    worst = Comparison(0.0, 0.0, 0, False)
    floor = EPSILON[low_dtype] * depth**0.5
    lost = SMALLEST[low_dtype] * depth
    for i, (value, expected) in enumerate(zip(after, before, strict=True)):
        found = _compare_one(
            value, expected, [c[i] for c in controls], (floor, lost), i
        )
        if found.chaotic or (not worst.chaotic and _excess(found) > _excess(worst)):
            worst = found
    return worst


def _excess(comparison: Comparison) -> float:
    return comparison.error - comparison.allowed


def _compare_one(
    value: np.ndarray,
    expected: np.ndarray,
    controls: Sequence[np.ndarray],
    floors: tuple[float, float],
    where: int,
) -> Comparison:
    relative, absolute = floors
    assert np.shape(value) == np.shape(expected), f"result {where} changed its shape"
    assert np.asarray(value).dtype == np.asarray(expected).dtype, (
        f"result {where} changed its dtype"
    )
    if not is_floating(np.asarray(expected)):
        moved = any(not np.array_equal(c, expected) for c in controls)
        equal = np.array_equal(value, expected)
        return Comparison(float(not equal), 0.0, where, moved and not equal)
    scale, noise = _largest(expected), noise_of(expected, controls)
    error = _distance(value, expected) / scale
    allowed = CONTROL_MULTIPLE * noise + relative + absolute / scale
    return Comparison(error, allowed, where, not noise < CHAOTIC)


def noise_of(expected: np.ndarray, controls: Sequence[np.ndarray]) -> float:
    """Return how far controls are off at most, relative to the largest magnitude."""
    far = max((_distance(each, expected) for each in controls), default=0.0)
    return far / _largest(expected)


def _largest(value: np.ndarray) -> float:
    finite = np.abs(np.asarray(value, np.float64)[np.isfinite(value)])
    return float(finite.max(initial=0.0)) or 1.0


def _distance(value: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference; infinite where only one of the two is finite."""
    a, b = np.asarray(value, np.float64), np.asarray(expected, np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    difference = np.abs(a - b)[~same]
    return float(np.nan_to_num(difference, nan=np.inf, posinf=np.inf).max())


def control_results(
    program: Program, original: GraphDef, low_dtype: str
) -> list[list[np.ndarray]]:
    """Run the float32 graph with every intermediate value rounded, in a few ways."""
    graphs = (
        rounded(program.graph_def, program.item, low_dtype, factor=factor)
        for factor in CONTROL_FACTORS
    )
    return [run(with_state(graph, program, original), program) for graph in graphs]


def depth_of(graph_def: GraphDef) -> int:
    """Return the number of roundings counted for the floor: products and loops."""
    products = sum(node.op.startswith(_PRODUCTS) for node in graph_def.node)
    return 4 + products * (4 if any(n.op == "Enter" for n in graph_def.node) else 1)


def rounded(
    graph_def: GraphDef, item: Item, low_dtype: str, *, factor: float = 1.0
) -> GraphDef:
    """Return the graph with values rounded where a rewriting might round them.

    Before   matmul --> tanh
    After    matmul --> times factor --> 16 bits --> float32 --> by factor --> tanh

    Not rounded: variables, constants, random numbers and what is computed from them
    alone, whatever only updates variables; and a fetch itself keeps its name and value.
    """
    exempt = _random(graph_def) | _state_updates(graph_def)
    library = {f.signature.name: f.signature for f in graph_def.library.function}
    result = GraphDef()
    result.CopyFrom(graph_def)
    renamed: dict[tuple[str, int], str] = {}
    for node in graph_def.node:
        if node.op in _NOT_ROUNDED or node.op in library or node.name in exempt:
            continue
        if node.op.startswith(_UPDATES):
            continue
        for i, dtype in enumerate(output_dtypes(node, library) or []):
            if dtype == FLOAT32:
                renamed[node.name, i] = _append_rounding(
                    result, node.name, i, low_dtype, factor
                )
    for node in result.node[: len(graph_def.node)]:
        for k, text in enumerate(node.input):
            name, _, port = text.partition(":")
            if not text.startswith("^") and (name, int(port or 0)) in renamed:
                node.input[k] = renamed[name, int(port or 0)]
    return result


def _append_rounding(
    graph_def: GraphDef, name: str, port: int, low_dtype: str, factor: float
) -> str:
    """Append the rounding of one port and return the name of its last node."""
    base = f"{name}/rounded_{port}"
    low = LOW_DTYPES.get(low_dtype)
    last = f"{name}:{port}" if port else name
    for step, scale in (("up", factor), ("down", 1.0 / factor)):
        if factor != 1.0:
            constant = graph_def.node.add(name=f"{base}/{step}", op="Const")
            # The control edge keeps the constant in the loop's frame.
            constant.input.append(f"^{name}")
            constant.attr["dtype"].type = FLOAT32
            constant.attr["value"].tensor.dtype = FLOAT32
            constant.attr["value"].tensor.tensor_shape.SetInParent()
            constant.attr["value"].tensor.float_val.append(scale)
            times = graph_def.node.add(name=f"{base}/times_{step}", op="Mul")
            times.input.extend([last, constant.name])
            times.attr["T"].type = FLOAT32
            last = times.name
        if step == "up" and low is not None:
            for suffix, source, target in (
                ("low", FLOAT32, low),
                ("high", low, FLOAT32),
            ):
                cast = graph_def.node.add(name=f"{base}/{suffix}", op="Cast")
                cast.input.append(last)
                cast.attr["SrcT"].type = source
                cast.attr["DstT"].type = target
                last = cast.name
    return last


def _random(graph_def: GraphDef) -> set[str]:
    """Return random ops and the elementwise arithmetic on them and constants alone."""
    nodes = {node.name: node for node in graph_def.node}
    found = {name for name, node in nodes.items() if "Random" in node.op}
    grew = True
    while grew:
        grew = False
        for node in graph_def.node:
            if node.name in found or node.op not in _ELEMENTWISE:
                continue
            sources = {name for name, _ in split_inputs(node)[0]}
            plain = {s for s in sources if s in nodes and nodes[s].op == "Const"}
            if sources - plain and sources - plain <= found:
                found.add(node.name)
                grew = True
    return found


def _state_updates(graph_def: GraphDef) -> set[str]:
    """Return the nodes, products aside, that are read by nothing but updates."""
    readers: dict[str, set[str]] = {}
    for node in graph_def.node:
        for source, _ in split_inputs(node)[0]:
            readers.setdefault(source, set()).add(node.name)
    found = {n.name for n in graph_def.node if n.op.startswith(_UPDATES)}
    candidates = [n for n in graph_def.node if not n.op.startswith(_PRODUCTS)]
    grew = True
    while grew:
        new = {
            node.name
            for node in candidates
            if node.name in readers and readers[node.name] <= found
        } - found
        found |= new
        grew = bool(new)
    return found
