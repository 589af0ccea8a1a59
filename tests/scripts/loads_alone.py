"""Run in a process of its own, where this package cannot be imported.

Loads models with both of TensorFlow's loaders, runs them on given inputs, and writes
what the signatures return.

    python loads_alone.py FOLDER < names, one per line
"""

import pathlib
import pickle
import sys

for name in ("tf_amp", "grappler_pass", "keras_callbacks"):
    sys.modules[name] = None

import tensorflow as tf  # noqa: E402


def objects(folder, inputs):
    """Return results, and dtypes and shapes of every signature."""
    model = tf.saved_model.load(str(folder))
    fed = {key: tf.constant(value) for key, value in inputs.items()}
    results = model.signatures["serving_default"](**fed)
    kinds = {
        name: [
            (key, spec.dtype.name, str(spec.shape))
            for outputs in (f.structured_input_signature[1], f.structured_outputs)
            for key, spec in sorted(outputs.items())
        ]
        for name, f in model.signatures.items()
    }
    return {key: value.numpy() for key, value in results.items()}, kinds


def session(folder, inputs):
    """Return results of the loader of TensorFlow 1."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as running:
        meta_graph = v1.saved_model.loader.load(running, ["serve"], str(folder))
        signature = meta_graph.signature_def["serving_default"]
        fetches = {key: info.name for key, info in signature.outputs.items()}
        fed = {signature.inputs[key].name: value for key, value in inputs.items()}
        return running.run(fetches, fed)


def frozen(path, inputs):
    """Return results of a frozen graph."""
    graph_def = tf.compat.v1.GraphDef.FromString(path.read_bytes())
    with tf.Graph().as_default(), tf.compat.v1.Session() as running:
        tf.graph_util.import_graph_def(graph_def, name="")
        fed = {f"{key}:0": value for key, value in inputs.items()}
        return {"y": running.run("y:0", fed)}


base = pathlib.Path(sys.argv[1])
found = {}
for line in sys.stdin.read().split():
    path = base / line
    with (base / f"{line.partition('-')[0]}.inputs").open("rb") as file:
        inputs = pickle.load(file)
    if path.is_dir():
        found[line] = (*objects(path, inputs), session(path, inputs))
    else:
        found[line] = frozen(path, inputs)
with (base / "results").open("wb") as file:
    pickle.dump(found, file)
