"""What is tried or measured has to fit the memory of the device that it runs on."""

from __future__ import annotations

import re

import pytest
import tensorflow as tf

from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Trial
from tests.onednn import needs_onednn
from tests.op_calls import spec
from tests.text_graph import graph_from_text
from tf_amp.config import devices
from tf_amp.measuring import probe_timing
from tf_amp.measuring.sandbox import memory
from tf_amp.measuring.sandbox.graph_copy import NotRunnableError
from tf_amp.measuring.sandbox.synthetic import UnfitError
from tf_amp.tools.explain.predicting import sandboxes_of

MIB = 1 << 20
# A table of 16 MiB on the host, weights of 4 MiB and all results on the GPU.
GRAPH = """
    table = VarHandleOp dtype=float32 shape=[4096,1024] @/device:CPU:0
    weights = VarHandleOp dtype=float32 shape=[1024,1024] @/device:GPU:0
    rows = ReadVariableOp(table) @/device:CPU:0
    w = ReadVariableOp(weights) @/device:GPU:0
    product = MatMul(rows, w) @/device:GPU:0
    fetch = Identity(product) @/device:GPU:0
"""
# Fit: 40 MiB of results with the weights, and the table.
ROOM = {"GPU": 44 * MIB, "CPU": 16 * MIB}


def trial_of(text: str) -> Trial:
    """Return a graph to be compared with itself, its results taking 40 MiB."""
    graph_def = graph_from_text(text)
    item, shapes = Item(fetch=("fetch",)), shapes_from_graph_def(graph_def)
    trial = Trial(graph_def, graph_def, item, shapes, 1e-3, 1e-3)
    return Trial(**{**vars(trial), "peak_bytes": 40 * MIB})


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Let there be a GPU, and return the room of each device, to be changed."""
    gpu = devices.Device("GPU", "/physical_device:GPU:0", "V100", (7, 0))
    present = (devices.Device("CPU", "/physical_device:CPU:0"), gpu)
    found = dict(ROOM)
    monkeypatch.setattr(devices, "present_devices", lambda: present)
    monkeypatch.setattr(memory, "most_bytes", lambda device_type: found[device_type])
    return found


def test_each_device_needs_room_for_what_it_holds(room: dict[str, int]) -> None:
    assert set(sandboxes_of(trial_of(GRAPH))) == {"before", "after"}


@pytest.mark.parametrize(
    ("device_type", "told"),
    [("GPU", "4 MiB of GPU memory, and running it 40"), ("CPU", "16 MiB of CPU")],
)
def test_a_device_without_room_is_not_tried(
    device_type: str, told: str, room: dict[str, int]
) -> None:
    room[device_type] -= 1
    with pytest.raises(NotRunnableError, match=re.escape(told)):
        sandboxes_of(trial_of(GRAPH))


def test_what_tensorflow_places_counts_for_the_gpu(room: dict[str, int]) -> None:
    unplaced = GRAPH.replace("@/device:GPU:0", "").replace("@/device:CPU:0", "")
    with pytest.raises(NotRunnableError, match="20 MiB of GPU memory"):
        sandboxes_of(trial_of(unplaced))


def test_without_a_gpu_all_counts_for_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unplaced = GRAPH.replace("@/device:GPU:0", "")
    monkeypatch.setattr(memory, "most_bytes", lambda device_type: 60 * MIB)
    sandboxes_of(trial_of(unplaced))
    monkeypatch.setattr(memory, "most_bytes", lambda device_type: 60 * MIB - 1)
    with pytest.raises(NotRunnableError, match="20 MiB of CPU memory"):
        sandboxes_of(trial_of(unplaced))


def test_an_op_needs_room_on_its_device_and_on_the_host(room: dict[str, int]) -> None:
    call = OpCall("Tanh", {}, (spec(MIB),), (spec(MIB),))
    room["GPU"] = room["CPU"] = 12 * MIB
    probe_timing._check_affordable(call, 1e-3, 1.0, "GPU")
    for short in room:
        room[short] -= 1
        with pytest.raises(UnfitError, match="would hold 12 MiB"):
            probe_timing._check_affordable(call, 1e-3, 1.0, "GPU")
        room[short] += 1


def test_an_op_needs_time_for_its_inputs_too() -> None:
    table, rows = TensorSpec((1 << 20, 64), "float32"), spec(1024)
    call = OpCall("GatherV2", {}, (table, rows), (spec(MIB),))
    probe_timing._check_affordable(call, 1e-3, 0.2, "CPU")
    with pytest.raises(UnfitError, match=r"0\.27 s predicted, 0\.1 s left"):
        probe_timing._check_affordable(call, 1e-3, 0.1, "CPU")


# Only then does TensorFlow count what a CPU's memory holds.
@needs_onednn
def test_what_is_free_is_what_tensorflow_may_still_allocate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tf.compat.v1.Session() as session:
        limits = {d.name: d.memory_limit_bytes for d in session.list_devices()}
    host = "/job:localhost/replica:0/task:0/device:CPU:0"
    assert dict(memory._pools("CPU"))["/device:CPU:0"] == limits[host] > 0
    # TensorFlow counts what any program of this process holds.
    held = tf.ones([MIB // 4])
    used = tf.config.experimental.get_memory_info("CPU:0")["current"]
    assert used >= held.numpy().nbytes == MIB
    assert memory._pool_free("/device:CPU:0", used + 5 * MIB) == 5 * MIB
    assert memory._pool_free("/device:CPU:0", used - 1) == 0
    assert memory._pool_free("/device:CPU:99", 5 * MIB) is None
    pools = tuple(("/device:CPU:0", used + free * MIB) for free in (3, 2))
    monkeypatch.setattr(memory, "_pools", lambda device_type: pools)
    assert memory.free_bytes("GPU") == 2 * MIB
    assert memory.free_bytes() > 2 * MIB
