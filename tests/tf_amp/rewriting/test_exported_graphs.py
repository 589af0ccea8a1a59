"""What is exported while mixed precision is on serves where it is not."""

from __future__ import annotations

from tests.fresh_process import output_of

EXPORTS = """
import pathlib, tempfile
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

v1 = tf.compat.v1
tf_amp.enable(dtype="float16", opt_level="O2", tune="off")
folder = pathlib.Path(tempfile.mkdtemp())

def nodes_of(graph_def):
    functions = graph_def.library.function
    return [*graph_def.node, *(node for f in functions for node in f.node_def)]

def attributes(graph_def):
    names = {name for node in nodes_of(graph_def) for name in node.attr}
    return {name for name in names if name.startswith(("_tf_amp", "_gradient_op_type"))}

def ops(graph_def):
    return {node.op for node in nodes_of(graph_def)}

def stored(name):
    data = (folder / name / "saved_model.pb").read_bytes()
    return SavedModel.FromString(data).meta_graphs[0].graph_def
"""

OBJECTS = """
class Net(tf.Module):
    def __init__(self):
        self.w = tf.Variable(tf.eye(8))
    @tf.function(input_signature=[tf.TensorSpec((8, 8))])
    def serve(self, x):
        return tf.nn.relu(x @ self.w)

net = Net()
net.serve(X)
tf.saved_model.save(net, str(folder / "net"))
print(sorted(attributes(stored("net"))))
loaded = tf.saved_model.load(str(folder / "net"))
print(DTYPES[float(loaded.serve(X)[0, 0])])
"""


def test_an_exported_model_carries_no_marks_and_goes_low_when_loaded() -> None:
    assert output_of(EXPORTS + OBJECTS) == ["[]", "float16"]


SESSION = """
with tf.Graph().as_default(), v1.Session() as session:
    x = v1.placeholder(tf.float32, (None, 8), name="x")
    w = v1.get_variable("w", initializer=tf.eye(8))
    y = tf.identity(x @ w, name="y")
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    train = optimizer.minimize(tf.reduce_mean(y**2))
    session.run(v1.global_variables_initializer())
    session.run(train, {x: X.numpy()})
    print("PyFunc" in ops(tf.compat.v1.get_default_graph().as_graph_def()))
    kept = v1.train.export_meta_graph()
    v1.saved_model.simple_save(session, str(folder / "v1"), {"x": x}, {"y": y})
marks = attributes(kept.graph_def)
unknown_elsewhere = {"_tf_amp", "_tf_amp_watch", "_gradient_op_type"}
print(marks & unknown_elsewhere, "_tf_amp_barrier" in marks)
print(ops(kept.graph_def) & {"PyFunc", "EagerPyFunc"})
print(sorted(attributes(stored("v1"))), ops(stored("v1")) & {"PyFunc", "EagerPyFunc"})
print(list(tf.saved_model.load(str(folder / "v1")).signatures))
"""


def test_an_exported_training_graph_calls_back_into_nothing() -> None:
    watched, kept, callbacks, served, signatures = output_of(EXPORTS + SESSION)
    assert watched == "True"
    # Training may go on with it: what must stay float32 still does.
    assert kept == "set() True"
    assert callbacks == "set()"
    assert served == "[] set()"
    assert signatures == "['serving_default']"


CONVERTED = """
class Net(tf.Module):
    def __init__(self):
        self.v, self.w = tf.Variable(tf.eye(8)), tf.Variable(tf.eye(8))
    @tf.function(input_signature=[tf.TensorSpec((8, 8))])
    def serve(self, x):
        with tf.name_scope("kept"):
            y = tf.nn.relu(x @ self.v)
        with tf.name_scope("low"):
            return y, y @ self.w

net = Net()
tf.saved_model.save(net, str(folder / "net"), signatures=net.serve)
tf_amp.convert(
    folder / "net", folder / "out", device_profile="cpu-avx512-bf16", opt_level="O2",
    dtype="bfloat16", exclude=["kept/"],
)
loaded = tf.saved_model.load(str(folder / "out"))
first, second = loaded.serve(X)
print(DTYPES[float(first[0, 0])], DTYPES[float(second[0, 0])], len(tf_amp.plans()))
"""


def test_a_converted_model_is_left_as_it_is_where_mixed_precision_is_on() -> None:
    # Else its float32 part would go to float16, which is in force.
    assert output_of(EXPORTS + CONVERTED) == ["float32 bfloat16 0"]


CONVERSION = """
net = tf.Module()
net.w = tf.Variable(tf.random.stateless_normal((64, 64), [1, 2]))
net.serve = tf.function(lambda x: tf.nn.relu(x @ net.w), [tf.TensorSpec((8, 64))])
net.serve(tf.ones((8, 64)))
serve = net.serve.get_concrete_function()
model = tf.lite.TFLiteConverter.from_concrete_functions([serve], net).convert()
interpreter = tf.lite.Interpreter(model_content=model)
print({tensor["dtype"].__name__ for tensor in interpreter.get_tensor_details()})
before = len(tf_amp.plans())
tf.function(lambda x: tf.nn.relu(x @ net.w))(tf.ones((8, 64)))
print(len(tf_amp.plans()) - before)

import time
tf_amp.disable()
start = time.monotonic()
tf.lite.TFLiteConverter.from_concrete_functions([serve], net).convert()
print(time.monotonic() - start < 20.0)  # What a graph waits for Python's lock.
"""


def test_a_conversion_to_tflite_is_float32_and_later_waits_for_nothing() -> None:
    assert output_of(EXPORTS + CONVERSION) == ["{'float32'}", "1", "True"]
