"""What explain tells of functions and graphs, in processes of their own."""

from tests.fresh_process import output_of


def test_explaining_neither_runs_nor_needs_enabling():
    lines = output_of(
        """
        function = product()
        plan = tf_amp.explain(function, X, EYE)
        print(plan.opt_level, plan.is_empty, len(tf_amp.plans()))
        tf_amp.enable("float16", opt_level="O2")
        traced = product()
        traced.get_concrete_function(X, EYE)
        tf_amp.disable()
        explained = tf_amp.explain(traced, X, EYE)
        traced(X, EYE)
        ran = tf_amp.plans()[-1]
        ours = lambda plan: {
            (d.slot, d.dtype) for d in plan.decisions if d.op in ("MatMul", "Relu")
        }
        print(explained.low_dtype, ours(explained) == ours(ran), len(ours(ran)))

        import keras
        model = keras.Sequential([keras.Input([8]), keras.layers.Dense(8)])
        print(tf_amp.explain(model, X).filter(op="MatMul").opt_level)
        graph_def = traced.get_concrete_function(X, EYE).graph.as_graph_def()
        print(tf_amp.explain(graph_def, ["Identity:0"]).low_dtype)
        for wrong in ((), (["nothing"],)):
            try:
                tf_amp.explain(graph_def, *wrong)
            except ValueError as error:
                print(error)
        """
    )
    assert lines[:4] == ["O1 True 0", "float16 True 2", "O1", "float16"]
    assert "needs fetches" in lines[4]
    assert "has no node nothing" in lines[5]


def test_a_training_step_is_explained_as_it_then_runs():
    lines = output_of(
        """
        import keras
        from dataclasses import replace
        dense = lambda: keras.layers.Dense(1024, "gelu")
        layers = [dense(), keras.layers.BatchNormalization(), dense()]
        model = keras.Sequential([keras.Input([1024]), *layers])
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)

        @tf.function(autograph=False)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            return loss

        def rows(plan):
            # Names of arguments, results and what goes into branches differ.
            ends = ("Placeholder", "_Arg", "_Retval", "Identity", "Switch", "Const")
            bare = lambda d: replace(d, reason=d.reason._replace(detail=""))
            return {d.slot: bare(d) for d in plan.decisions if d.op not in ends}

        # A loss scale adds branches, whose names count calls.
        tf_amp.enable(device_profile="v100", loss_scale="none")
        x = tf.ones([2048, 1024])
        explained = rows(tf_amp.explain(step, x))
        print(len(tf_amp.plans()))
        step(x)
        ran = rows(tf_amp.plans()[-1])
        print(len(ran) > 100, explained == ran)
        print(sum(row.is_low for row in ran.values()) > 2)
        """
    )
    assert lines == ["0", "True True", "True"]


def test_a_graph_that_is_none_is_explained_with_a_clear_error():
    lines = output_of(
        """
        def graph_def(*nodes):
            graph = tf.compat.v1.GraphDef()
            for name, op, *inputs in nodes:
                node = graph.node.add(name=name, op=op, input=inputs)
                node.attr["T"].type = tf.float32.as_datatype_enum
            return graph

        for graph in (
            graph_def(("a", "Relu", "nowhere")),
            graph_def(("a", "Relu", "b"), ("b", "Relu", "a")),
            graph_def(("a", "NoSuchOp")),
        ):
            try:
                print("plan of", len(tf_amp.explain(graph, "a").decisions))
            except Exception as error:
                print(type(error).__name__, error)
        """
    )
    assert lines[0].startswith("StageError") and "nowhere" in lines[0]
    assert lines[1].startswith("StageError") and "cycle" in lines[1]
    assert lines[2].startswith("StageError") and "NoSuchOp" in lines[2]
