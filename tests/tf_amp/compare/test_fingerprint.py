"""A graph is known again in another run of the same script, and only then."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Trial
from tests.forking import run_forked
from tests.processes import run_python
from tf_amp.compare.fingerprint import fingerprint_of
from tf_amp.tracing.grappler_preview import graph_with_variables, kept_nodes

_FIT = """
    import numpy as np, tensorflow as tf, keras
    from grappler_pass import plugin
    from grappler_pass.planning.draft import Trial
    from grappler_pass.graph.view import Item
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tf_amp.compare.fingerprint import fingerprint_of

    seen = []

    def keep(data, item):
        graph_def = GraphDef.FromString(data)
        if any(node.op == "MatMul" for node in graph_def.node):
            told = Item(fetch=item.fetch, preserve=item.preserve)
            shapes = item.shapes([node.name for node in graph_def.node])
            trial = Trial(graph_def, graph_def, told, shapes, 0.0, 0.0)
            seen.append(fingerprint_of(trial))

    plugin.load(keep, ("CPU",))
    model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    {before}
    model.fit(np.ones([64, 4], "float32"), np.ones([64, 1]), verbose=0)
    plugin.clear_callback()
    print(*seen)
"""


def fingerprint_of_graph(graph_def: GraphDef, shapes: Shapes | None = None) -> str:
    trial = Trial(graph_def, graph_def, Item(fetch=()), shapes or {}, 0.0, 0.0)
    return fingerprint_of(trial)


def test_two_runs_of_a_script_have_the_same_fingerprints() -> None:
    # What is traced before shifts the numbers in names of functions and nodes.
    traced = "tf.function(lambda x: x + 1)(1); tf.Variable(1.0); tf.Graph()"
    plain = run_forked(_FIT.replace("{before}", "")).lines()[-1]
    # The hashes of its strings are other ones, too.
    shifted = run_python(_FIT.replace("{before}", traced)).lines()[-1]
    assert plain and plain == shifted


def test_another_shape_or_another_plan_is_another_fingerprint() -> None:
    def trial(columns: int, transpose: bool) -> Trial:
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, [8, columns])
            y = tf.matmul(x, x, transpose_a=transpose, transpose_b=not transpose)
        graph_def = graph.as_graph_def()
        shapes = shapes_from_graph_def(graph_def)
        return Trial(graph_def, graph_def, Item((y.op.name,)), shapes, 0.0, 0.0)

    prints = {
        fingerprint_of(trial(columns, transpose))
        for columns in (4, 5)
        for transpose in (True, False)
    }
    assert len(prints) == 4


def _fingerprint_with_variables(width: int) -> str:
    """Return that of a step whose inputs and outputs tell nothing of its width."""
    first = tf.Variable(tf.ones([256, width]))
    last = tf.Variable(tf.ones([width, 256]))
    step = tf.function(lambda x: tf.nn.relu(x @ first) @ last)
    function = step.get_concrete_function(tf.TensorSpec([8, 256]))
    graph_def, kept = graph_with_variables(function.graph), kept_nodes(function.graph)
    shapes = shapes_from_graph_def(graph_def)
    return fingerprint_of(Trial(graph_def, graph_def, Item(kept), shapes, 0.0, 0.0))


def test_another_size_of_a_variable_is_another_fingerprint() -> None:
    narrow, again, wide = map(_fingerprint_with_variables, (64, 64, 4096))
    assert narrow == again != wide


def test_sizes_that_a_graph_does_not_name_are_known_by_its_shapes() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, name="x")
        tf.matmul(x, x, transpose_b=True)
    narrow, again, wide = (
        fingerprint_of_graph(graph.as_graph_def(), {"x": ((8, columns),)})
        for columns in (4, 4, 5)
    )
    assert narrow == again != wide


def test_a_constant_that_cannot_be_read_back_is_known_by_its_shape() -> None:
    graph_def = tf.Graph().as_graph_def()
    text = graph_def.node.add(name="text", op="Const")
    text.attr["dtype"].type = tf.string.as_datatype_enum
    tensor = text.attr["value"].tensor
    tensor.dtype = tf.string.as_datatype_enum
    tensor.tensor_shape.dim.add(size=1)
    tensor.tensor_content = b"\x04text"
    first = fingerprint_of_graph(graph_def)
    tensor.tensor_shape.dim[0].size = 2
    assert fingerprint_of_graph(graph_def) != first


# The runtime forgets a function with the last who could call it.
_alive: list[object] = []


def _calling(products: int, *, branch: bool = False) -> tf.compat.v1.GraphDef:
    """Return a graph whose products are all in a function that it calls."""

    @tf.function
    def chain(x: tf.Tensor) -> tf.Tensor:
        for _ in range(products):
            x = x @ x
        return x

    def outer(x: tf.Tensor) -> tf.Tensor:
        if branch:
            return tf.switch_case(tf.shape(x)[0], [lambda: x, lambda: chain(x)])
        return chain(x)

    traced = tf.function(outer).get_concrete_function(tf.TensorSpec([8, 8]))
    _alive.append(traced)
    return traced.graph.as_graph_def()


def _without_bodies(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Return a graph as Grappler passes it: the runtime knows the functions."""
    emptied = tf.compat.v1.GraphDef.FromString(graph_def.SerializeToString())
    for function in emptied.library.function:
        function.ClearField("node_def")
        function.ClearField("ret")
    return emptied


@pytest.mark.parametrize("branch", [False, True])
def test_a_function_is_known_by_what_its_body_computes(branch: bool) -> None:
    first = _calling(2, branch=branch)
    # Traced anew, its functions have other names.
    again = _calling(2, branch=branch)
    longer = _calling(9, branch=branch)
    for given in (lambda graph_def: graph_def, _without_bodies):
        one, same, other = (
            fingerprint_of_graph(given(each)) for each in (first, again, longer)
        )
        assert one == same != other


def test_a_function_of_which_nothing_is_known_is_known_by_its_name() -> None:
    def fingerprint(name: str) -> str:
        graph_def = _without_bodies(_calling(2))
        (function,) = graph_def.library.function
        call = next(n for n in graph_def.node if n.op.endswith("PartitionedCall"))
        call.attr["f"].func.name = function.signature.name = name
        return fingerprint_of_graph(graph_def)

    assert fingerprint("lost_7") == fingerprint("lost_8") != fingerprint("other_7")


def test_a_function_that_calls_itself_has_a_fingerprint() -> None:
    graph_def = _calling(2)
    (function,) = graph_def.library.function
    arguments = [function.signature.input_arg[0].name]
    itself = function.node_def.add(name="itself", op="PartitionedCall", input=arguments)
    itself.attr["f"].func.name = function.signature.name
    assert fingerprint_of_graph(graph_def) != fingerprint_of_graph(_calling(2))
