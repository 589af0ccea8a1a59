"""The bridge in fresh processes: what reaches Python, and what comes back."""

from __future__ import annotations

import pathlib
import shutil

from tests.forking import run_forked
from tests.processes import ROOT, run_python
from tests.shim_programs import DOUBLING, run_with_shim


def test_what_the_callback_returns_runs_and_all_else_leaves_the_result_alone() -> None:
    ended = run_forked(
        DOUBLING
        + """
import signal
# Not so where the tests run in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
def raises(graph, item): raise ValueError("broken pass")
def leaves(graph, item): sys.exit(3)
kinds = {
    "none": lambda graph, item: None,
    "same": lambda graph, item: graph,
    "double": double_ones,
    "raises": raises,
    "exits": leaves,
    "not_bytes": lambda graph, item: 7,
    "not_a_graph": lambda graph, item: b"\\xff\\xff",
}
print("before", answer())
for name, callback in kinds.items():
    plugin.load(callback)
    print(name, answer())
print("idle", plugin.clear_callback(1.0), "loaded", bool(plugin._bridge.shims))
print("cleared", answer())
"""
    )
    assert ended.lines() == [
        *("before 1.0", "none 1.0", "same 1.0", "double 2.0", "raises 1.0"),
        *("exits 1.0", "not_bytes 1.0", "not_a_graph 1.0"),
        *("idle True loaded True", "cleared 1.0"),
    ]
    assert "A graph passes through unchanged" in ended.err
    assert "ValueError: broken pass" in ended.err


def test_an_item_tells_names_and_shapes_and_expires() -> None:
    printed = run_with_shim(
        """
from grappler_pass.graph.shapes import shapes_from_graph_def
seen = []
def look(graph, item):
    names = [node.name for node in GraphDef.FromString(graph).node]
    seen.append((item, item.fetch, item.preserve, item.shapes(names), graph))
plugin.load(look)
@tf.function(input_signature=[tf.TensorSpec((None, 3)), tf.TensorSpec(None)])
def f(x, y):
    return tf.nn.relu(tf.matmul(x, tf.ones((3, 5)))), tf.exp(y), tf.split(x, 3, 1)[2]
f(tf.ones((2, 3)), tf.ones(7))
item, fetch, preserve, shapes, graph = seen[0]
ops = {n.name: n.op for n in GraphDef.FromString(graph).node}
known = {ops[name]: shape for name, shape in shapes.items()}
print(known["MatMul" if "MatMul" in known else "_FusedMatMul"], known["Exp"])
print(known.get("Split"))
print(set(fetch) <= set(preserve) <= set(ops), bool(fetch))
imported = shapes_from_graph_def(GraphDef.FromString(graph))
print(all(imported[name] == shape for name, shape in shapes.items()))
try:
    item.fetch
except ValueError as error:
    print("expired" in str(error))
"""
    )
    assert printed[0] in ("((None, 5),) (None,)",)
    assert printed[1] == "((None, 1), (None, 1), (None, 1))"
    assert printed[2:] == ["True True", "True", "True"]


def test_sessions_and_threads_pass_through_it_at_once() -> None:
    printed = run_with_shim(
        """
plugin.load(double_ones)
wrong = []
def trace_many(count):
    for _ in range(count):
        if answer() != 2.0:
            wrong.append("function")
def run_sessions(count):
    for _ in range(count):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, (3, 3))
            y = tf.matmul(x, x) + 1.0
            if session.run(tf.tanh(y) * 0.0 + y, {x: [[0.0] * 3] * 3})[0, 0] != 2.0:
                wrong.append("session")
threads = [threading.Thread(target=trace_many, args=(12,)) for _ in range(4)]
threads += [threading.Thread(target=run_sessions, args=(12,)) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join(120)
print(wrong, any(thread.is_alive() for thread in threads))
"""
    )
    assert printed == ["[] False"]


def test_clearing_waits_for_passes_in_other_threads_but_never_for_its_own() -> None:
    printed = run_with_shim(
        """
entered, ended = threading.Event(), []
def slow(graph, item):
    entered.set(); time.sleep(0.7); ended.append(1)
plugin.load(slow)
thread = threading.Thread(target=answer)
thread.start(); entered.wait(60)
print("too short", plugin.clear_callback(0.05), len(ended))
print("long enough", plugin.clear_callback(60), len(ended))
thread.join()
inside = []
plugin.set_callback(lambda graph, item: inside.append(plugin.clear_callback(60)))
start = time.monotonic(); answer()
print("inside", inside[0], time.monotonic() - start < 30)
"""
    )
    assert printed == ["too short False 0", "long enough True 1", "inside True True"]


def test_a_forked_child_passes_graphs_unchanged_until_it_sets_its_own() -> None:
    printed = run_with_shim(
        """
plugin.load(double_ones)
child = os.fork()
if not child:
    first = answer()
    plugin.set_callback(double_ones)
    os._exit(0 if (first, answer()) == (1.0, 2.0) else 1)
print(os.waitpid(child, 0)[1], answer())
"""
    )
    assert printed == ["0 2.0"]


def test_worker_processes_forked_during_a_pass_come_back() -> None:
    printed = run_with_shim(
        """
import multiprocessing
entered = threading.Event()
def slow(graph, item):
    entered.set(); time.sleep(0.5)
    return double_ones(graph, item)
def square(number): return plugin.clear_callback(5.0) and number * number
plugin.load(slow)
results = []
thread = threading.Thread(target=lambda: results.append(answer()))
thread.start(); entered.wait(60)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(square, range(4)))
thread.join(60)
print(results)
"""
    )
    assert printed == ["[0, 1, 4, 9]", "[2.0]"]


def test_the_interpreter_waits_at_exit_for_a_thread_inside_a_pass() -> None:
    # Of a daemon thread that is on its way from TensorFlow to Python while the
    # interpreter goes away, TensorFlow makes a crash by itself; so it is joined.
    printed = run_python(
        f"""
import atexit
entered, ended, threads = [], [], []
def look():
    print("passes", len(entered), len(ended))
    threads[0].join(60)
    print("result", results)
atexit.register(look)  # Runs after what is registered later, as by the plugin.
{DOUBLING}
results = []
def slow(graph, item):
    entered.append(1)
    end = time.monotonic() + 0.5
    while time.monotonic() < end: item.shapes(["x"])
    ended.append(1)
    return double_ones(graph, item)
plugin.load(slow)
threads.append(threading.Thread(target=lambda: results.append(answer()), daemon=True))
threads[0].start()
while not entered: time.sleep(0.01)
"""
    ).lines()
    assert printed == ["passes 1 1", "result [2.0]"]


def test_an_interrupt_during_a_pass_reaches_the_program() -> None:
    printed = run_with_shim(
        """
import signal
# Shells have what they run in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupted(graph, item):
    signal.raise_signal(signal.SIGINT)
plugin.load(interrupted)
try:
    answer()
    time.sleep(60)  # It may come a moment after the call.
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted")
plugin.set_callback(double_ones)
print(answer())
"""
    )
    assert printed == ["interrupted", "2.0"]


def test_settings_made_for_devices_before_loading_hold() -> None:
    printed = run_with_shim(
        """
cpus = tf.config.list_physical_devices("CPU")
tf.config.set_visible_devices([], "GPU")
tf.config.set_logical_device_configuration(
    cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
plugin.load(double_ones)
print(len(tf.config.list_logical_devices("CPU")), answer())
"""
    )
    assert printed == ["2 2.0"]


def test_a_shim_that_is_missing_broken_or_doubled_is_named_with_the_remedy(
    tmp_path: pathlib.Path,
) -> None:
    copied = tmp_path / "_shim_cpu.so"
    shutil.copy(ROOT / "grappler_pass" / "_shim_cpu.so", copied)
    broken = tmp_path / "_shim_broken.so"
    broken.write_text("this is no library")
    printed = run_with_shim(
        f"""
import ctypes, pathlib
def failure(path):
    plugin.shim_path = lambda device_type: pathlib.Path(path)
    try:
        plugin.load(double_ones)
    except plugin.ShimError as error:
        return str(error)
folder = {str(tmp_path)!r}
missing = failure(folder + "/_shim_none.so")
print(folder + "/_shim_none.so" in missing, "--no-deps .`" in missing)
broken = failure(folder + "/_shim_broken.so")
print(folder + "/_shim_broken.so" in broken, "Reinstall" in broken)
print(answer(), bool(plugin._bridge.shims))
real = {str(ROOT / "grappler_pass" / "_shim_cpu.so")!r}
loaded = ctypes.CDLL(folder + "/_shim_cpu.so")
doubled = failure(real)
print(real in doubled, folder in doubled, "Uninstall" in doubled)
"""
    )
    assert printed == ["True True", "True True", "1.0 False", "True True True"]


def test_a_call_that_keeps_the_lock_and_waits_for_a_graph_ends() -> None:
    ended = run_forked(
        DOUBLING
        + """
plugin.load(double_ones)
for shim in plugin._bridge.shims.values():
    shim.tf_amp_set_patience(300)
net = tf.Module()
net.weight = tf.Variable(tf.ones((64, 64)))
serve = tf.function(lambda x: x @ net.weight, [tf.TensorSpec((8, 64))])
concrete = serve.get_concrete_function()
# The converter keeps the lock while another thread runs graphs.
model = tf.lite.TFLiteConverter.from_concrete_functions([concrete], net).convert()
print(len(model) > 0, answer())
"""
    )
    assert ended.lines()[-1] == "True 2.0"
    assert "another thread has kept Python's lock for 0.3 seconds" in ended.err


def test_graphs_of_many_threads_at_once_all_reach_python(
    tmp_path: pathlib.Path,
) -> None:
    copy = tmp_path / "_shim_alone.so"
    shutil.copy(ROOT / "grappler_pass" / "_shim_cpu.so", copy)
    ended = run_python(
        f"""
        import pathlib
        from tests.shim_programs import graphs_seen

        for _ in range(4):
            print(graphs_seen(pathlib.Path({str(copy)!r}), threads=32, calls=600))
        """
    )
    assert ended.lines() == ["19200"] * 4
