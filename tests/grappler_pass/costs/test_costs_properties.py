"""What holds for prices of every size and on every device."""

import math

from hypothesis import given
from hypothesis import strategies as st

from grappler_pass.costs import CostModel, OpCall, TensorSpec, op_work
from tests.op_calls import (
    DTYPES,
    MEASURED,
    MODELS,
    PROFILES,
    batch_matmul,
    convolution,
    elementwise,
    matmul,
    seconds,
)

profiles = st.sampled_from(PROFILES)
dtypes = st.sampled_from(DTYPES)
dims = st.integers(1, 3000)


_shapes = {
    "MatMul": (matmul, 3),
    "BatchMatMulV2": (batch_matmul, 4),
}
_elementwise_ops = st.sampled_from(
    ["AddV2", "Tanh", "Relu", "Softmax", "Cast", "NobodysOp", "TanhGrad", "Erf"]
)


@given(profiles, dtypes, st.sampled_from(sorted(_shapes)), st.data())
def test_a_larger_product_never_costs_less(profile, dtype, op, data):
    build, rank = _shapes[op]
    point = data.draw(st.tuples(*[dims] * rank))
    axis = data.draw(st.integers(0, rank - 1))
    # A batch of one is another class.
    point = (max(point[0], 2), *point[1:])
    larger = list(point)
    larger[axis] += data.draw(st.integers(1, 500))
    model = MODELS[profile]
    if model.profile.kind == "gpu":
        # Between multiples of eight a GPU is slower than at the next.
        point, larger = ([8 * size for size in each] for each in (point, larger))
    before = seconds(build(*point), dtype, model)
    assert 0.0 < before <= seconds(build(*larger), dtype, model) * (1 + 1e-9)


@given(profiles, dtypes, _elementwise_ops, dims, dims)
def test_more_rows_never_cost_less(profile, dtype, op, rows, columns):
    model = MODELS[profile]
    small, large = (elementwise(op, n, columns) for n in (rows, 2 * rows))
    if op == "Cast":
        small, large = (
            OpCall(op, {}, call.inputs, (TensorSpec(call.inputs[0].shape, "bfloat16"),))
            for call in (small, large)
        )
    before = seconds(small, dtype, model)
    assert 0.0 < before <= seconds(large, dtype, model) * (1 + 1e-9)
    assert math.isfinite(before)


@given(
    profiles,
    st.sampled_from(["Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"]),
    st.sampled_from([1, 3, 5, 7]),
    st.sampled_from([1, 2]),
    st.integers(1, 64),
    st.integers(1, 256),
    st.integers(1, 256),
)
def test_more_channels_never_cost_less(
    profile, op, kernel, stride, batch, channels, filters
):
    model = MODELS[profile]
    small, large = (
        convolution(op, batch, 14, channels, n, kernel=kernel, stride=stride)
        for n in (filters, 2 * filters)
    )
    for dtype in DTYPES:
        before = seconds(small, dtype, model)
        assert 0.0 < before <= seconds(large, dtype, model) * (1 + 1e-9)


@given(profiles, st.integers(1, 1 << 26), st.permutations(DTYPES))
def test_a_cast_costs_something_and_more_when_larger(profile, elements, ends):
    model = MODELS[profile]
    source, target = ends[:2]
    here = model.cast_price(elements, source, target).seconds
    twice = model.cast_price(2 * elements, source, target).seconds
    assert 0.0 < here <= twice * (1 + 1e-9)
    assert model.cast_price(elements, source, source).seconds == 0.0


@given(profiles, dtypes, dims, dims, dims)
def test_a_price_looked_up_again_is_the_same(profile, dtype, m, k, n):
    model = MODELS[profile]
    fresh = CostModel(model.profile)
    call = matmul(m, k, n, transpose_a=False)
    first = model.price(call, dtype)
    assert model.price(call, dtype) is first
    assert fresh.price(call, dtype) == first


def test_attributes_given_as_lists_are_priced_too():
    call = convolution("Conv2D", 4, 14, 32, 32, strides=[1, 2, 2, 1])
    same = convolution("Conv2D", 4, 14, 32, 32, strides=(1, 2, 2, 1))
    assert MEASURED.price(call, "float32") == MEASURED.price(same, "float32")


_every_op = st.sampled_from(
    sorted(
        set(op_work._BUILDERS)
        | {"Const", "Cast", "AssignAddVariableOp", "While", "NobodysOp"}
    )
)
_any_shape = st.none() | st.lists(st.none() | st.integers(0, 300), max_size=5).map(
    tuple
)
_any_spec = st.builds(
    TensorSpec, _any_shape, st.sampled_from(["float32", "int32", "bool", "resource"])
)
_specs = st.lists(_any_spec, max_size=4).map(tuple)
_attrs = st.fixed_dictionaries(
    {},
    optional={
        "strides": st.lists(st.integers(1, 3), max_size=4),
        "ksize": st.just((1, 3, 3, 1)),
        "fused_ops": st.lists(st.sampled_from([b"BiasAdd", "Relu", "Unheard"])),
        "equation": st.sampled_from([b"ab,bc->ac", "...a,ab->...b", "a->a", ""]),
        "is_training": st.booleans(),
        "data_format": st.sampled_from([b"NHWC", "NCHW"]),
        "transpose_a": st.booleans(),
    },
)


@given(profiles, dtypes, _every_op, _attrs, _specs, _specs)
def test_whatever_the_shapes_a_price_is_a_number(
    profile, dtype, op, attrs, inputs, outputs
):
    price = MODELS[profile].price(OpCall(op, attrs, inputs, outputs), dtype)
    assert 0.0 <= price.seconds < math.inf
    assert price.source in ("profile", "roofline")
