"""Inputs made up for an op are of its shapes, valid, and easy on the arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from grappler_pass.costs.calls import TensorSpec
from grappler_pass.costs.database.probes import Probe, cast_probe
from tests.probe_samples import matmul, probe
from tf_amp.measuring.sandbox.synthetic import UnfitError, argument_names, inputs_of

GATHER = {"Taxis": "type: DT_INT32", "Tindices": "type: DT_INT32"}
LABELS = {"Tlabels": "type: DT_INT32"}


def arrays_of(given_probe, dtype="float32"):
    return [make() for make in inputs_of(given_probe, dtype).values]


def gather(rows, count, axis=0):
    return probe(
        "GatherV2",
        (rows, rows + 3),
        indices=(count,),
        constants=[(axis,)],
        dtype_attr="Tparams",
        batch_dims="i: 0",
        **GATHER,
    )


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 9), max_size=4).map(tuple),
    st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
)
def test_floating_values_are_neither_denormal_nor_out_of_domain(shape, dtype):
    (values,) = arrays_of(probe("Log", shape), dtype)
    assert values.shape == shape
    assert tf.as_dtype(values.dtype).name == dtype
    wide = values.astype(np.float64)
    assert np.all((wide >= 0.49) & (wide <= 0.91))


@settings(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 300), st.sampled_from([0, 1, -1]))
def test_indices_lie_in_the_table_and_jump_about(rows, count, axis):
    table, indices, at = arrays_of(gather(rows, count, axis))
    size = table.shape[axis]
    assert (int(at), at.shape) == (axis, ())
    assert indices.min() >= 0 and indices.max() < size
    if count > 20 and size > 20:
        assert len(set(indices.tolist())) > 4


def test_labels_are_less_than_the_number_of_classes():
    op = "SparseSoftmaxCrossEntropyWithLogits"
    _, labels = arrays_of(probe(op, (64, 10), indices=(64,), **LABELS))
    assert set(labels.tolist()) == set(range(10))


def test_segments_are_sorted_where_they_must_be():
    sorted_op = probe("SegmentSum", (30, 4), indices=(30,), Tindices="type: DT_INT32")
    _, ids = arrays_of(sorted_op)
    assert np.all(np.diff(ids) >= 0) and ids.max() < 30
    anywhere = probe(
        "UnsortedSegmentSum",
        *((30, 4),),
        indices=(30,),
        constants=[(7,)],
        Tindices="type: DT_INT32",
        Tnumsegments="type: DT_INT32",
    )
    _, ids, _ = arrays_of(anywhere)
    assert ids.min() >= 0 and ids.max() == 6 and np.any(np.diff(ids) < 0)


def test_both_truth_values_occur():
    spec = TensorSpec((9,), "bool")
    both = TensorSpec((9,), "*")
    select = Probe("SelectV2", (), (("T", 0),), (spec, both, both))
    condition, _, _ = arrays_of(select)
    assert set(condition.tolist()) == {False, True}


def test_constants_keep_their_values():
    transpose = probe(
        "Transpose", (2, 3, 4), constants=[(2, 0, 1)], Tperm="type: DT_INT32"
    )
    inputs = inputs_of(transpose, "bfloat16")
    assert inputs.constants == {1}
    assert inputs.values[1]().tolist() == [2, 0, 1]


def test_a_repeated_argument_is_named_as_often_as_it_is_given():
    concat = probe(
        "ConcatV2",
        *((2, 3),) * 4,
        constants=[(1,)],
        N="i: 4",
        Tidx="type: DT_INT32",
    )
    assert argument_names(concat) == ("values",) * 4 + ("axis",)
    fused = probe("_FusedMatMul", (2, 3), (3, 4), (4,), num_args="i: 1")
    assert argument_names(fused) == ("a", "b", "args")


def test_a_cast_has_its_source_type():
    (values,) = arrays_of(cast_probe(100, "bfloat16", "float32"), "float32")
    assert tf.as_dtype(values.dtype).name == "bfloat16"


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        (probe("Nowhere", (2,)), "Nowhere is not an op"),
        (probe("MatMul", (2, 2)), "takes 2 inputs, not 1"),
        (
            Probe("Bincount", (), (), (TensorSpec((3,), "int32"),) * 2),
            "takes 3 inputs, not 2",
        ),
        (
            Probe("Dequantize", (), (), (TensorSpec((3,), "qint8"),) * 3),
            "takes qint8",
        ),
        (probe("Fill", indices=(2,), dtype_attr="T"), "takes 2 inputs"),
        (
            probe("TopKV2", (5, 5), indices=()),
            "integers 'k' of unknown meaning",
        ),
    ],
)
def test_what_cannot_be_made_up_is_said(wrong, part):
    with pytest.raises(UnfitError, match=part):
        inputs_of(wrong, "float32")


def test_inputs_are_the_same_every_time():
    for first, second in zip(
        arrays_of(matmul(8, 16, 8)), arrays_of(matmul(8, 16, 8)), strict=True
    ):
        np.testing.assert_array_equal(first, second)
