"""Remedies of an audit that edit the op lists: each is followed, and works."""

import inspect
import os
import re

import pytest
import tensorflow as tf

import tf_amp
from tf_amp.config.setting_values import LIST_PREFIX

CPU, V100 = ("cpu-avx512-bf16", "bfloat16"), ("v100", "float16")
H100 = ("h100", "float16")


def fused(x, w, bias):
    return tf.nn.relu(tf.nn.bias_add(x @ w, bias)) @ w


def powers(x, w):
    return tf.exp(x @ w) @ w


def squares(x, w):
    """Compute what is denied in float16 only, and keeps relative errors."""
    return tf.square(x @ w) @ w


def by_powers(x, w):
    """Divide by what is denied in float16 only."""
    product = x @ w
    return (product / tf.exp(product)) @ w


def by_a_mean(x, w):
    """Divide by what is denied in both types."""
    product = x @ w
    return (product / tf.reduce_mean(product)) @ w


def hyperbolic(x, w):
    """Compute Cosh, which is in no list."""
    return tf.cosh(x @ w) @ w


def beta(x, w):
    """Compute Betainc, which is in no list and has no 16-bit kernel."""
    product = x @ w
    return tf.math.betainc(product, product, product) @ w


def powers_apart(x, w):
    """Compute Exp between Sums, far from products."""
    return tf.reduce_sum(tf.exp(tf.reduce_sum(x @ w, 0)))


def audited(function, device, low_dtype):
    size = tf.TensorSpec([1024, 1024])
    specs = {"x": size, "w": size, "bias": tf.TensorSpec([1024])}
    given = [specs[name] for name in inspect.signature(function).parameters]
    return tf_amp.audit(
        tf.function(function), *given, device_profile=device, dtype=low_dtype
    )


def remedy_of(op, audit):
    (found,) = (each for each in audit.obstacles if each.op == op)
    assert found.dtype == "float32"
    return found.remedy


def follow(remedy, monkeypatch):
    """Edit the variables of the lists as a remedy says."""
    for op, name in re.findall(r"take (\w+) out of (\w+)", remedy):
        left = [
            each for each in os.environ[LIST_PREFIX + name].split(",") if each != op
        ]
        monkeypatch.setenv(LIST_PREFIX + name, ",".join(left))
    for name, op in re.findall(r"(\w+LIST_\w+)=(\w+)", remedy):
        monkeypatch.setenv(LIST_PREFIX + name, op)


@pytest.mark.parametrize(
    ("function", "op", "device", "edit", "remedy"),
    [
        (powers, "Exp", V100, "", "CLEARLIST_ADD=Exp"),
        (
            powers,
            "Exp",
            V100,
            "DENYLIST_ADD=Exp,Tanh",
            "take Exp out of DENYLIST_ADD, and CLEARLIST_ADD=Exp",
        ),
        (hyperbolic, "Cosh", V100, "", "CLEARLIST_ADD=Cosh"),
        (by_a_mean, "RealDiv", H100, "", "CLEARLIST_ADD=RealDiv"),
        (
            by_a_mean,
            "RealDiv",
            CPU,
            "INFERLIST_REMOVE=RealDiv",
            "take RealDiv out of INFERLIST_REMOVE, and CLEARLIST_ADD=RealDiv",
        ),
        (
            fused,
            "_FusedMatMul",
            CPU,
            "INFERLIST_REMOVE=BiasAdd",
            "take BiasAdd out of INFERLIST_REMOVE",
        ),
        (
            fused,
            "_FusedMatMul",
            CPU,
            "DENYLIST_ADD=BiasAdd",
            "take BiasAdd out of DENYLIST_ADD",
        ),
        (
            fused,
            "_FusedMatMul",
            CPU,
            "BLACKLIST_ADD=MatMul",
            "take MatMul out of BLACKLIST_ADD",
        ),
    ],
)
def test_who_edits_the_lists_as_told_has_the_op_in_16_bits(
    function, op, device, edit, remedy, monkeypatch
):
    monkeypatch.setenv("TF_AMP_OPT_LEVEL", "O2")
    if edit:
        name, _, ops = edit.partition("=")
        monkeypatch.setenv(LIST_PREFIX + name, ops)
    told = remedy_of(op, audited(function, *device))
    assert told == f"if you know it to be harmless: {remedy}"
    follow(told, monkeypatch)
    plan = audited(function, *device).plan
    assert [d.dtype for d in plan.decisions if d.op == op] == [device[1]]


@pytest.mark.parametrize(
    ("function", "op"), [(squares, "Square"), (by_powers, "RealDiv")]
)
def test_bfloat16_is_the_remedy_only_where_the_op_goes_low_in_it(
    function, op, monkeypatch
):
    monkeypatch.setenv("TF_AMP_OPT_LEVEL", "O2")
    told = remedy_of(op, audited(function, *H100))
    assert told == "plan in bfloat16, which has float32's range"
    plan = audited(function, "h100", "bfloat16").plan
    assert [d.dtype for d in plan.decisions if d.op == op] == ["bfloat16"]


@pytest.mark.parametrize(("function", "op"), [(beta, "Betainc"), (powers_apart, "Exp")])
def test_what_no_edit_of_its_list_frees_is_left_without_a_remedy(function, op):
    assert remedy_of(op, audited(function, *V100)) == ""
