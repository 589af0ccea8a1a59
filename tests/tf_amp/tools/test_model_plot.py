"""A model is drawn with its layers in the color of their type."""

import shutil

import keras
import pytest
import tensorflow as tf
import tf_keras

import tf_amp
from grappler_pass.graph.type_slots import TypeSlot
from grappler_pass.planning.plan import Cause, Decision, Plan, Reason
from tf_amp.errors import ConfigError
from tf_amp.tools.model_plot import _COLORS, colored_dot, plot_model

pytestmark = pytest.mark.usefixtures("disabled_afterwards")
both_keras = pytest.mark.parametrize("kit", [keras, tf_keras], ids=["k3", "tf_keras"])
LOW, FLOAT32 = _COLORS["bfloat16"], _COLORS["float32"]


def model_of(kit):
    """Return a large layer, one of the same stem in float32, and a model within."""
    inner = kit.Sequential([kit.layers.Dense(256, name="big")], name="inner")
    return kit.Sequential(
        [
            kit.layers.Input((256,)),
            kit.layers.Dense(1024, name="dense"),
            kit.layers.Dense(1024, name="dense_1"),
            inner,
            kit.layers.Reshape((256,), name="shaped"),
        ],
        name="whole",
    )


def colors_of(dot):
    """Return the color of each layer that is drawn, by its name; nested ones too."""
    found = {}
    for graph in (dot, *dot.get_subgraphs()):
        for node in graph.get_nodes():
            text = node.to_string()
            for name in ("dense_1", "dense", "inner", "big", "shaped"):
                if name in text:
                    hits = [color for color in (LOW, FLOAT32) if color in text]
                    found[name] = hits[0] if hits else None
                    break
    return found


@both_keras
def test_each_layer_has_the_color_of_most_of_its_time(kit):
    model = model_of(kit)
    tf_amp.enable(
        "bfloat16",
        device_profile="cpu-avx512-bf16",
        exclude=[model.get_layer("dense_1")],
    )
    plan = tf_amp.explain(model, tf.TensorSpec((4096, 256)))
    colors = colors_of(colored_dot(model, plan, show_shapes=True))
    expected = {"dense": LOW, "dense_1": FLOAT32, "inner": LOW, "shaped": None}
    assert colors == expected
    assert colors_of(colored_dot(model, plan, expand_nested=True))["big"] == LOW


def test_a_training_step_counts_its_gradients():
    model = model_of(keras)
    name = "gradient_tape/whole_1/dense_1/MatMul/MatMul_1"
    low = Decision(
        TypeSlot(name, "T", 0), "MatMul", "bfloat16", Reason(Cause.GAIN), 2, 1
    )
    high = Decision(
        TypeSlot("whole_1/dense_1/Relu", "T", 0),
        "Relu",
        "float32",
        Reason(Cause.COST),
        0.5,
    )
    plan = Plan((low, high), "bfloat16")
    # TensorFlow counts the names that Keras 3 uses.
    assert colors_of(colored_dot(model, plan))["dense"] == LOW
    assert colors_of(colored_dot(model, plan))["dense_1"] is None


def test_what_does_not_fit_is_refused():
    model, other = model_of(keras), Plan((), "bfloat16", graph="step")
    with pytest.raises(ConfigError, match="no operation of the plan 'step' belongs"):
        plot_model(model, other)
    with pytest.raises(ConfigError, match="wanted is a model of Keras"):
        row = Decision(
            TypeSlot("a/b/c", "T", 0), "Relu", "float32", Reason(Cause.COST), 1
        )
        plot_model(Named(), Plan((row,), "bfloat16"))


class Named:
    """Something with layers that Keras does not know."""

    name = "a"
    layers = (keras.layers.Dense(1, name="b"),)


def test_the_drawing_is_written_or_graphviz_is_asked_for(tmp_path):
    model = model_of(keras)
    name = "whole_1/dense_1/MatMul"
    row = Decision(TypeSlot(name, "T", 0), "MatMul", "float32", Reason(Cause.COST), 1.0)
    plan = Plan((row,), "bfloat16")
    path = tmp_path / "drawing.svg"
    if shutil.which("dot"):
        plot_model(model, plan, path)
        assert FLOAT32 in path.read_text()
    else:
        error = "graphviz did not draw .*drawing.svg"
        with pytest.raises(tf_amp.MissingExtraError, match=error):
            plot_model(model, plan, path)
