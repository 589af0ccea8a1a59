"""One process of `benchmarks.serving` and `benchmarks.convert`; prints JSON.

export MODEL VARIANT FOLDER        a model as Keras exports it
serve FOLDER VARIANT --batches 1,8 seconds per call of its signature
weights FOLDER MEGABYTES           a model of dense layers, of about that size
convert IN OUT --weights low       seconds, and memory, of a conversion
"""

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.catalog import entry, variant
from benchmarks.variants import switch_on

_FEWEST_CALLS, _WARM_CALLS = 5, 3
_WIDTH = 2048
_KIBI = 1024


def main() -> None:
    """Do what the command line says and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=tuple(_TASKS))
    parser.add_argument("names", nargs="+")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--weights", default="float32")
    parser.add_argument("--batch", type=int)
    options = parser.parse_args()
    print(json.dumps(_TASKS[options.task](options)))


def _export(options: argparse.Namespace) -> Any:
    name, chosen, folder = options.names
    switch_on(variant(chosen).method)
    from benchmarks.steps import build_model

    build_model(entry(name)).export(folder, verbose=False)
    return {}


def _serve(options: argparse.Namespace) -> dict[str, float]:
    """Return the median seconds of a call by size of the batch."""
    folder, chosen = options.names
    switch_on(variant(chosen).method)
    model = tf.saved_model.load(folder)
    signature = model.signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()
    return {
        batch: _seconds(
            lambda x: signature(**{name: x}), _inputs(spec, int(batch)), options
        )
        for batch in options.batches.split(",")
    }


def _seconds(call: Any, inputs: tf.Tensor, options: argparse.Namespace) -> float:
    for _ in range(_WARM_CALLS):
        call(inputs)
    times: list[float] = []
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end or len(times) < _FEWEST_CALLS:
        begin = time.perf_counter()
        for result in call(inputs).values():
            result.numpy()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def _inputs(spec: tf.TensorSpec, batch: int) -> tf.Tensor:
    shape = [batch, *spec.shape[1:]]
    rng = np.random.default_rng(0)
    if spec.dtype.is_floating:
        return tf.constant(rng.standard_normal(shape), spec.dtype)
    return tf.constant(rng.integers(1000, size=shape), spec.dtype)


def _weights(options: argparse.Namespace) -> Any:
    folder, megabytes = options.names
    layers = max(1, round(float(megabytes) * 1e6 / (4 * _WIDTH**2)))

    class Net(tf.Module):
        def __init__(self) -> None:
            shape = (_WIDTH, _WIDTH)
            self.layers = [tf.Variable(tf.random.normal(shape)) for _ in range(layers)]

        @tf.function(input_signature=[tf.TensorSpec((None, _WIDTH), name="x")])
        def serve(self, x: tf.Tensor) -> Any:
            for layer in self.layers:
                x = tf.nn.relu(x @ layer)
            return {"y": x}

    net = Net()
    tf.saved_model.save(net, folder, signatures=net.serve)
    return {}


def _convert(options: argparse.Namespace) -> dict[str, float]:
    """Return seconds to load and to convert, and memory beyond the import's."""
    from tf_amp import convert

    source, target = options.names
    begin = time.perf_counter()
    size = sum(f.stat().st_size for f in Path(source).rglob("*") if f.is_file())
    before = _peak_bytes()
    report = convert(source, target, weights=options.weights, batch=options.batch)
    seconds = time.perf_counter() - begin
    peak = _peak_bytes()
    begin = time.perf_counter()
    tf.saved_model.load(source)
    return {
        "size": size,
        "size_after": report.bytes_after,
        "seconds": seconds,
        "load_seconds": time.perf_counter() - begin,
        "import_bytes": before,
        "peak_bytes": peak,
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBI


_TASKS = {
    "export": _export,
    "serve": _serve,
    "weights": _weights,
    "convert": _convert,
}

if __name__ == "__main__":
    main()
