"""Where nodes run: by their own device, by kernels, at home; never by a guess."""

from __future__ import annotations

import pytest

from grappler_pass.errors import StageError
from grappler_pass.graph import type_slots
from grappler_pass.graph.device_types import DeviceError, Home, device_type_of
from grappler_pass.graph.type_slots import ABSENT_GPU
from grappler_pass.graph.view import Graph, Item
from tests.rewriters import rewritten_by, settings_of
from tests.text_graph import graph_from_text

PROGRAM = """
    x = Placeholder dtype=float32
    named = MatMul(x, x) @/device:CPU:0
    elsewhere = MatMul(x, x) @/job:worker/task:1/device:GPU:1
    product = MatMul(x, x)
    text = AsString(product) T=float32
    joined = StringJoin(text) N=1
    size = Const dtype=int32 value=7
"""


def types_at(home: Home | None, text: str = PROGRAM) -> dict[str, str]:
    view = Graph(graph_from_text(text), home=home)
    return {node.name: node.device_type for node in view.nodes}


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("/job:localhost/replica:0/task:0/device:CPU:0", "CPU"),
        ("/job:worker/replica:0/task:1/device:GPU:3", "GPU"),
        ("/gpu:0", "GPU"),
    ],
)
def test_a_device_string_names_its_kind(device: str, kind: str) -> None:
    assert device_type_of(device) == kind


@pytest.mark.parametrize("device", ["", "/job:worker/task:1", "/device:*"])
def test_a_string_that_names_no_device_is_refused(device: str) -> None:
    with pytest.raises(DeviceError, match=r"ask Node\.device_type of a Graph"):
        device_type_of(device)


def test_what_names_no_device_is_on_the_cpu_of_a_program_without_gpus() -> None:
    found = types_at(Home("CPU"))
    assert found.pop("elsewhere") == "GPU"
    assert set(found.values()) == {"CPU"}


def test_what_names_no_device_is_on_a_gpu_if_its_op_has_a_kernel_there() -> None:
    # Ops of XLA have kernels for GPUs in every build.
    text = """
        x = Placeholder dtype=float32
        sorted = XlaSort(x)
        joined = AsString(sorted) T=float32
    """
    home = Home("GPU")
    assert types_at(home, text) | {"x": ""} == {
        "x": "",
        "sorted": "GPU",
        "joined": "CPU",
    }
    if not type_slots.has_kernels_for("GPU"):
        assert types_at(home)["product"] == "CPU"


def test_where_no_kernels_for_gpus_are_built_in_floats_are_on_the_gpu() -> None:
    found = types_at(Home(ABSENT_GPU))
    on_gpu = {name for name, kind in found.items() if kind == ABSENT_GPU}
    assert on_gpu == {"x", "product", "text"}
    assert found["elsewhere"] == "GPU"
    assert {found[name] for name in ("named", "joined", "size")} == {"CPU"}


def test_what_xla_compiles_is_on_one_device_whatever_its_nodes_name() -> None:
    assert set(types_at(Home("GPU", is_compiled=True)).values()) == {"GPU"}


def test_a_node_without_a_device_in_a_graph_without_a_home_is_not_guessed() -> None:
    view = Graph(graph_from_text(PROGRAM))
    assert view.nodes[view.index["named"]].device_type == "CPU"
    with pytest.raises(DeviceError, match=r"'product' names no device.*a home"):
        _ = view.nodes[view.index["product"]].device_type


def test_a_graph_is_not_rewritten_whose_home_nobody_has_said() -> None:
    text = """
        x = Placeholder dtype=float32 shape=[8,8]
        product = MatMul(x, x)
        fetch = Identity(product)
    """
    settings = settings_of("bfloat16", "O2", home=None)
    with pytest.raises(StageError, match="names no device"):
        rewritten_by(graph_from_text(text), Item(fetch=("fetch",)), settings)
