"""The four lists: where ops are, that they are disjoint, and how a user edits them."""

from __future__ import annotations

import pytest
from tensorflow.python.framework import op_def_registry

from grappler_pass.graph import op_table
from grappler_pass.graph.op_lists import OpListError, OpLists
from grappler_pass.graph.op_table import OP_TABLE, OTHERS, Errors
from grappler_pass.graph.op_traits import gradient_input, reserve_input, reserve_output

BFLOAT16 = OpLists.for_dtype("bfloat16")
FLOAT16 = OpLists.for_dtype("float16")


def known(op: str) -> bool:
    return op_def_registry.get(op) is not None


def test_every_op_of_the_table_exists_in_tensorflow() -> None:
    assert [row.op for row in OP_TABLE if not known(row.op)] == []


def test_every_op_of_a_fact_exists_in_tensorflow() -> None:
    facts = [ops for name, ops in vars(op_table).items() if name.endswith("_OPS")]
    assert len(facts) > 30
    assert sorted(op for op in frozenset().union(*facts) if not known(op)) == []


def test_every_gradient_says_where_it_is_read_and_what_becomes_of_the_rest() -> None:
    gradients = {row.op for row in OP_TABLE if row.why.errors is Errors.GRADIENT}
    assert gradients == OTHERS.keys()
    for op in gradients:
        name = op_def_registry.get(op).input_arg[gradient_input(op)].name
        assert "grad" in name or name in ("dy", "y_backprop"), op


@pytest.mark.parametrize(
    ("op", "left", "taken"),
    [
        ("CudnnRNN", 3, None),
        ("CudnnRNNV3", 3, None),
        ("CudnnRNNBackpropV2", None, 10),
        ("CudnnRNNBackpropV3", None, 11),
        ("FusedBatchNormV2", None, None),
        ("FusedBatchNormV3", 5, None),
        ("_FusedBatchNormEx", 5, None),
        ("FusedBatchNormGradV2", None, None),
        ("FusedBatchNormGradV3", None, 5),
        ("_FusedBatchNormGradEx", None, 5),
        ("MatMul", None, None),
    ],
)
def test_reserve_spaces_are_found_by_their_names(
    op: str, left: int | None, taken: int | None
) -> None:
    assert (reserve_output(op), reserve_input(op)) == (left, taken)


def test_no_op_has_two_rows_and_every_row_has_a_reason() -> None:
    ops = [row.op for row in OP_TABLE]
    assert len(ops) == len(set(ops))
    assert all(row.why.text for row in OP_TABLE)


@pytest.mark.parametrize(
    ("op", "bfloat16", "float16"),
    [
        ("MatMul", "allow", "allow"),
        ("_FusedMatMul", "allow", "allow"),
        ("_FusedConv2D", "allow", "allow"),
        ("CudnnRNNV3", "allow", "allow"),
        ("BlockLSTMV2", "deny", "deny"),
        ("AddV2", "infer", "infer"),
        ("_FusedBatchNormEx", "infer", "infer"),
        ("Exp", "infer", "deny"),
        ("Square", "infer", "deny"),
        ("Pow", "infer", "deny"),
        ("Sum", "deny", "deny"),
        ("Mean", "deny", "deny"),
        ("SoftmaxCrossEntropyWithLogits", "deny", "deny"),
        ("GatherV2", "clear", "clear"),
        ("TensorListSetItem", "clear", "clear"),
        ("Switch", "clear", "clear"),
        ("ResourceGather", None, None),
        ("While", None, None),
        ("PartitionedCall", None, None),
    ],
)
def test_an_op_is_where_its_numerics_put_it(
    op: str, bfloat16: str | None, float16: str | None
) -> None:
    assert (BFLOAT16.list_of(op), FLOAT16.list_of(op)) == (bfloat16, float16)


def test_only_gradients_of_biases_and_norms_reduce_gradients() -> None:
    found = op_table.SUMMING_GRADIENT_OPS
    assert {"BiasAddGrad", "FusedBatchNormGradV3"} <= found
    assert not [op for op in found if "Bias" not in op and "Norm" not in op]


def test_an_added_op_is_on_its_list_and_says_who_put_it_there() -> None:
    edited = BFLOAT16.edited(add={"allow": ["Cholesky"]})
    assert edited.list_of("Cholesky") == "allow"
    assert edited.reason_of("Cholesky") == "you have put it there"
    assert BFLOAT16.list_of("Cholesky") is None


def test_a_removed_op_is_on_no_list_and_has_no_reason() -> None:
    edited = BFLOAT16.edited(remove={"allow": ["MatMul"]})
    assert edited.list_of("MatMul") is None
    assert edited.reason_of("MatMul") == ""


def test_an_op_moves_by_removing_and_adding() -> None:
    edited = FLOAT16.edited(add={"infer": ["Exp"]}, remove={"deny": ["Exp"]})
    assert edited.list_of("Exp") == "infer"


def test_removing_what_is_not_on_a_list_changes_nothing() -> None:
    assert FLOAT16.edited(remove={"deny": ["MatMul"]}) == FLOAT16


def test_adding_an_op_to_its_own_list_keeps_its_reason() -> None:
    edited = FLOAT16.edited(add={"deny": ["Exp"]})
    assert edited == FLOAT16
    assert edited.reason_of("Exp") == FLOAT16.reason_of("Exp")


@pytest.mark.parametrize(
    ("add", "message"),
    [
        ({"allow": ["Exp"]}, "'Exp' is in two lists, 'allow' and 'deny'"),
        ({"allow": ["Cholesky"], "clear": ["Cholesky"]}, "'Cholesky' is in two lists"),
        ({"white": ["MatMul"]}, r"no op list 'white'.*allow, infer"),
        ({"allow": "MatMul"}, r"write \['MatMul'\]"),
    ],
)
def test_edits_that_leave_no_four_lists_are_refused(add: dict, message: str) -> None:
    with pytest.raises(OpListError, match=message):
        FLOAT16.edited(add=add)


def test_another_dtype_has_no_lists() -> None:
    with pytest.raises(OpListError, match="'float64'"):
        OpLists.for_dtype("float64")
