"""Which settings a graph runs with: the stamps on its operations."""

import tensorflow as tf
from google.protobuf import text_format

import tf_amp
from benchmarks.executed import count_executed
from grappler_pass.annotations import STAMP
from tests.fresh_process import output_of
from tf_amp.tracing.stamp_reader import Marks, marks_from_graph_def


def graph_def(*lines: str) -> tf.compat.v1.GraphDef:
    """Make a graph of lines "name op [stamp]"."""
    graph = tf.compat.v1.GraphDef()
    for line in lines:
        name, op, *stamp = line.split()
        node = graph.node.add(name=name, op=op)
        if stamp:
            text = f's: "{stamp[0]}"'
            text_format.Parse(text, node.attr[STAMP])
    return graph


def test_a_graph_without_stamps_has_no_settings():
    graph = graph_def("a Placeholder", "b MatMul")
    assert marks_from_graph_def(graph) == Marks(None, "")


def test_the_most_common_function_names_the_graph():
    graph = graph_def("a Placeholder A:outer", "b MatMul A:step", "c Relu A:step")
    assert marks_from_graph_def(graph) == Marks("A", "step")


def test_nodes_of_other_settings_are_strangers():
    graph = graph_def("a MatMul A:f", "b Relu A:f", "call/c MatMul B:g")
    assert marks_from_graph_def(graph) == Marks("A", "f", ("call/c",))


def test_what_grappler_made_belongs_to_the_scope_it_was_made_in():
    graph = graph_def(
        "x/dense/MatMul MatMul A:f",
        "x/dense/Relu Relu A:f",
        "x/Fold Const",
        "call/dense/ReadVariableOp ReadVariableOp B:g",
        "call/dense/BiasAdd _FusedMatMul",
        "call/dense/Cast/folded Const",
        "elsewhere Const",
    )
    assert marks_from_graph_def(graph) == Marks(
        "A",
        "f",
        ("call/dense/ReadVariableOp", "call/dense/BiasAdd", "call/dense/Cast/folded"),
    )


def test_a_fused_node_is_no_stranger_where_all_stamps_agree():
    graph = graph_def("x/r ReadVariableOp A:f", "x/BiasAdd _FusedMatMul", "y Const")
    assert marks_from_graph_def(graph) == Marks("A", "f")


def test_an_unstamped_product_was_traced_without_settings():
    graph = graph_def("a MatMul A:f", "b Relu A:f", "call/c MatMul", "call/d Relu")
    assert marks_from_graph_def(graph) == Marks("A", "f", ("call/c", "call/d"))


def test_functions_called_by_functions_keep_their_own_settings():
    lines = output_of(
        """
        def calling(inner):
            # More operations of its own than the called function has.
            def outer(x, y):
                for _ in range(4):
                    y = tf.linalg.diag(tf.linalg.diag_part(y @ EYE))
                return inner(x, y)
            return tf.function(outer)

        def kinds():
            ops = {d.dtype for d in tf_amp.plans()[-1].decisions if d.op == "MatMul"}
            return sorted(ops)

        early = tf.function(lambda x, y: x @ y)
        early(X, EYE)
        tf_amp.enable(opt_level="O2")
        bfloat16 = tf.function(lambda x, y: x @ y)
        bfloat16(X, EYE)
        print(dtype_of(calling(bfloat16)), kinds())
        print(dtype_of(calling(early)), kinds())
        tf_amp.enable("float16", opt_level="O2")
        print(dtype_of(calling(bfloat16)), kinds())
        print(dtype_of(calling(tf.function(lambda x, y: x @ y))), kinds())
        tf_amp.disable()
        print(dtype_of(calling(early)), len(tf_amp.plans()))
        """
    )
    assert lines == [
        "bfloat16 ['bfloat16']",
        "float32 ['bfloat16', 'float32']",
        "bfloat16 ['bfloat16', 'float16']",
        "float16 ['float16']",
        "float32 6",
    ]


def test_every_operation_made_or_imported_while_enabled_is_stamped():
    lines = output_of(
        """
        def stamps_of(graph):
            nodes = graph.as_graph_def().node
            return {n.attr["_tf_amp"].s.decode() if "_tf_amp" in n.attr else None
                    for n in nodes}

        def loop(x):
            step = lambda x: [tf.cond(x[0, 0] > 0, lambda: x @ x, lambda: x)]
            return tf.while_loop(lambda x: True, step, [x], maximum_iterations=3)

        tf_amp.enable(opt_level="O2")
        concrete = tf.function(loop).get_concrete_function(X)
        found = {None}
        for function in (concrete.graph, *concrete.graph._functions.values()):
            graph = getattr(function, "graph", function)
            found |= stamps_of(graph)
        settings = {stamp.split(":")[0] for stamp in found - {None}}
        print(len(settings), len(found) > 3)
        print({stamp.split(":")[1] for stamp in found - {None}})
        print(None in stamps_of(concrete.graph))

        graph_def = concrete.graph.as_graph_def()
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def)
        print({s.split(":")[1] for s in stamps_of(graph)})

        dataset = tf.data.Dataset.range(2).map(lambda i: tf.function(loop)(X))
        print(stamps_of(dataset._map_func.function.graph))
        tf_amp.disable()
        with tf.Graph().as_default() as graph:
            tf.constant(1.0)
        print(stamps_of(graph))
        """
    )
    assert lines == [
        "1 True",
        "{'loop'}",
        "False",
        "{'graph of a Session'}",
        "{None}",
        "{None}",
    ]


def test_a_gradient_made_after_a_function_was_traced_is_rewritten_with_it():
    lines = output_of(
        """
        tf_amp.enable(opt_level="O2")
        function = product()
        function(X, EYE)
        with tf.GradientTape() as tape:
            tape.watch(EYE)
            result = function(X, EYE)
        gradient = tape.gradient(result, EYE)
        names = [plan.graph for plan in tf_amp.plans()]
        print(len(names), DTYPES[float(gradient[0, 0])])
        """
    )
    assert lines == ["3 bfloat16"]


def test_equal_gradients_of_different_operations_are_still_made_once(
    disabled_afterwards,
):
    def shapes_in_step():
        w = tf.Variable(tf.ones([4, 4]))

        @tf.function(input_signature=[tf.TensorSpec([None, 4])])
        def step(x):
            with tf.GradientTape() as tape:
                y = x @ w
                loss = tf.reduce_sum(y) + 2.0 * tf.reduce_mean(y) + tf.norm(y)
            return tape.gradient(loss, w)

        return count_executed(lambda: step(tf.ones([2, 4])), "Shape")

    plain = shapes_in_step()
    tf_amp.enable("bfloat16", opt_level="O0")

    assert shapes_in_step() == plain
