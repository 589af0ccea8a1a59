"""A device beside its host: what moves between them, and what stays."""

from __future__ import annotations

from tests.gpu.device import ON_THE_DEVICE, lines_of, needs_gpu

pytestmark = ON_THE_DEVICE

# The host beside the device; where the device is a CPU both are logical ones of it.
BOTH = """
HOST = "CPU:0"
if KIND == "CPU":
    split()
    DEVICE = SECOND
def place_of(name):
    return name.rpartition("device:")[2]
"""
OFFLOADED = f"""
{BOTH}
import keras
from tf_amp.placement import offload_optimizer

X = np.random.default_rng(0).normal(size=(32, 16)).astype("float32")
Y = np.random.default_rng(1).normal(size=(32, 4)).astype("float32")

def fitted(optimizer):
    keras.utils.set_random_seed(1)
    # On a GPU all is there anyway.
    with tf.device(DEVICE if KIND == "CPU" else None):
        layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((16,)), *layers])
        model.compile(optimizer, "mse", jit_compile=False)
        told = model.fit(X, Y, batch_size=8, epochs=4, shuffle=False, verbose=0)
    return model, told.history["loss"]

_, expected = fitted(keras.optimizers.Adam(0.01))
for down in ("float32", "bfloat16"):
    optimizer = offload_optimizer(
        keras.optimizers.Adam(0.01), HOST, down=down, verbose=False)
    model, losses = fitted(optimizer)
    print({{place_of(v.value.device) for v in optimizer.variables[2:]}} == {{HOST}})
    print({{place_of(w.value.device) for w in model.weights}} == {{DEVICE}})
    print(np.allclose(losses, expected, rtol=1e-4 if down == "float32" else 0.02))
"""


def test_an_optimizer_on_the_host_trains_as_one_on_the_device() -> None:
    assert lines_of(OFFLOADED) == ["True"] * 6


DIVIDED = f"""
{BOTH}
import tf_amp
from tf_amp._tensorflow_private.functions import executed_graphs

A = np.random.default_rng(0).normal(size=(512, 512)).astype("float32") / 23
X = tf.constant(A)

def step(x):
    for _ in range(4):
        x = tf.tanh(x @ A)
    return tf.reduce_mean(tf.exp(x))

expected = float(step(X))
tf_amp.enable("bfloat16")
affinity = tf_amp.placement.precision_affinity({{HOST: "cpu-generic", DEVICE: "h100"}})
with affinity, tf.device(HOST):
    function, found = tf.function(step), []
    graphs = executed_graphs(lambda: found.append(float(function(X))))
places = [place_of(n.device) for g in graphs for n in g.node if "MatMul" in n.op]
print(len(places), set(places) == {{DEVICE}})
print(abs(found[0] - expected) < 0.01 * expected)
placed = max(affinity.placed, key=lambda each: len(each.moved))
print(placed.seconds_after < placed.seconds_before)
back = tf_amp.placement.precision_affinity({{DEVICE: "h100", HOST: "cpu-generic"}})
with tf.Graph().as_default() as graph:
    tf.identity(step(tf.compat.v1.placeholder(tf.float32, (512, 512))), name="out")
print(back.place(graph.as_graph_def(), ["out"]).moved)
"""


def test_products_move_from_the_host_to_the_device_and_none_back() -> None:
    assert lines_of(DIVIDED) == ["4 True", "True", "True", "()"]


# Of a step each: what it has taken at most, beyond what was there before its model.
PEAKS = """
import gc
import keras
import tf_amp

X = np.random.default_rng(0).normal(size=(8192, 1024)).astype(np.float32)

def peak(is_compiled):
    keras.utils.set_random_seed(1)
    info = tf.config.experimental.get_memory_info
    keras.backend.clear_session()
    gc.collect()
    before = info(DEVICE)["current"]
    layers = [keras.layers.Dense(1024, "gelu") for _ in range(8)]
    model = keras.Sequential([keras.Input((1024,)), *layers])
    model.compile("adam", "mse", jit_compile=is_compiled)
    x = tf.constant(X)
    model.train_on_batch(x, x)
    tf.config.experimental.reset_memory_stats(DEVICE)
    for _ in range(3):
        model.train_on_batch(x, x)
    return info(DEVICE)["peak"] - before

for is_compiled in (False, True):
    float32 = peak(is_compiled)
    for dtype in ("bfloat16", "float16"):
        for level in ("O1", "O2"):
            with tf_amp.mixed_precision_scope(dtype, opt_level=level):
                low = peak(is_compiled)
            # The allocator's own blocks differ a little from run to run.
            print(is_compiled, dtype, level, low <= 1.02 * float32, low, float32)
"""


# TensorFlow counts no memory of a CPU.
@needs_gpu
def test_a_step_takes_no_more_memory_than_in_float32() -> None:
    lines = lines_of(PEAKS)
    assert len(lines) == 8
    assert all(line.split()[3] == "True" for line in lines), "\n".join(lines)
