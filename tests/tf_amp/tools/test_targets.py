"""Plans for a device that is named use what the environment says of plans."""

import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.planning.plan import Cause
from tf_amp.config.amp_config import AmpConfig
from tf_amp.rewriting.graph_settings import settings_from_config
from tf_amp.tools import target_device

SPEC = tf.TensorSpec([1024, 1024])


@tf.function
def products(x):
    return tf.matmul(tf.matmul(x, x, name="first"), x, name="second")


@pytest.fixture
def ranges(tmp_path):
    """A file in which both products leave the range of float16."""
    seen = tf_amp.ranges(products, [tf.fill([64, 64], 1e3)])
    assert set(seen.unsafe("float16")) >= {"first", "second"}
    file = tmp_path / "ranges.json"
    seen.save(file)
    return file


def test_every_setting_of_a_plan_holds_for_a_named_device_too(ranges):
    config = AmpConfig(
        opt_level="O2",
        exclude=("head",),
        tie=0.25,
        ranges=ranges,
        dtype="float16",
        fuse=("layer_norms",),
    )
    here = settings_from_config(config, "CPU")
    named = target_device.target_of("v100", "float16").settings(config)
    assert named.ranges and named.tie == 0.25
    names = "low_dtype lists opt_level exclude tie ranges fusions"
    for setting in names.split():
        assert getattr(named, setting) == getattr(here, setting)


def test_an_audit_counts_what_is_rewritten_beside_types():
    images, filters = tf.TensorSpec([16, 56, 56, 64]), tf.ones([3, 3, 64, 64])
    scale, offset = tf.linspace(0.5, 2.0, 64), tf.linspace(-1.0, 1.0, 64)

    @tf.function
    def block(x):
        return tf.nn.relu(tf.nn.conv2d(x, filters, 1, "SAME") * scale + offset)

    plan = tf_amp.audit(block, images, device_profile="cpu-avx512-bf16").plan
    assert [each.rule for each in plan.fusions] == ["channel_scales"]


def test_an_audit_keeps_in_float32_what_was_seen_to_leave_the_range(
    ranges, monkeypatch
):
    assert not tf_amp.audit(products, SPEC, device_profile="v100").plan.is_empty
    monkeypatch.setenv("TF_AMP_RANGES", str(ranges))
    plan = tf_amp.audit(products, SPEC, device_profile="v100").plan
    assert plan.is_empty
    kept = plan.filter(op="MatMul").decisions
    assert {row.reason.cause for row in kept} == {Cause.MEASURED_RANGE}


def test_so_does_a_conversion_for_a_named_device(ranges, monkeypatch):
    function = products.get_concrete_function(SPEC)

    def types_of_products():
        mixed = tf_amp.optimize(function, device_profile="v100")
        nodes = mixed.graph.as_graph_def().node
        return [node.attr["T"].type for node in nodes if node.op == "MatMul"]

    low, full = tf.float16.as_datatype_enum, tf.float32.as_datatype_enum
    assert types_of_products() == [low, low]
    monkeypatch.setenv("TF_AMP_RANGES", str(ranges))
    assert types_of_products() == [full, full]
