"""Gradients exchanged in 16 bits: how far sums are off, and what is sent."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.all_reduce import resnet50_shapes
from keras_callbacks.mirrored import (
    BFLOAT16,
    DEFAULT_BUCKET_BYTES,
    ENCODINGS,
    Bucket,
    buckets_of,
    exchange,
    in_16_bits,
    to_one_device,
)

EITHER = pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
# Its largest number; what is closer to it than to the next one is rounded to it.
BFLOAT16_MAX = float(np.finfo(np.float32).max) * (1 - 2.0**-8)


def exchanged(gradients, encoding, *, is_mean=False):
    """Exchange gradients [replica][tensor] on one device; return them likewise."""
    bucket = Bucket(
        tuple(range(len(gradients[0]))), tuple(g.size for g in gradients[0])
    )
    tensors = [[tf.constant(g) for g in own] for own in gradients]
    devices = ["/cpu:0"] * len(gradients)
    results = exchange(tensors, devices, bucket, encoding, is_mean=is_mean)
    return [[tensor.numpy() for tensor in own] for own in results]


def bound(stacked, encoding):
    """Return how far the sum over the first axis, [replica, element], may be off.

    Rounded twice, before and after the sum, which is float32's. Holds where the exact
    sum is within the type's range.
    """
    replicas = len(stacked)
    finite = np.where(np.isfinite(stacked), np.abs(stacked).astype(np.float64), 0.0)
    peak = finite.max(axis=1, initial=0.0).sum()
    relative = 2 * encoding.rounding + encoding.rounding**2 + 2 * replicas * 2.0**-24
    tiny = 2 * (replicas + 1) * 2.0**-126
    return relative * finite.sum(axis=0) + 4 * encoding.floor * peak + tiny


def gradients_of(seed, replicas, size, spread):
    """Draw values over many orders of magnitude, with zeros among them."""
    rng = np.random.default_rng(seed)
    exponents = rng.uniform(-spread, spread, (replicas, size))
    values = rng.choice([-1.0, 0.0, 1.0], (replicas, size), p=[0.45, 0.1, 0.45])
    return (values * 2.0**exponents).astype(np.float32)


@EITHER
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    replicas=st.integers(2, 5),
    size=st.integers(0, 40),
    spread=st.sampled_from([1.0, 20.0, 120.0]),
    is_mean=st.booleans(),
)
def test_sums_and_means_are_within_the_bound(
    encoding, seed, replicas, size, spread, is_mean
):
    stacked = gradients_of(seed, replicas, size, spread)
    results = exchanged([[own] for own in stacked], encoding, is_mean=is_mean)
    divisor = replicas if is_mean else 1
    exact = stacked.astype(np.float64).sum(axis=0) / divisor
    allowed = bound(stacked, encoding) / divisor + 2.0**-23 * np.abs(exact)
    assert (np.abs(results[0][0] - exact) <= allowed).all()


@EITHER
@settings(max_examples=30)
@given(
    stacked=arrays(
        np.float32, (3, 7), elements=st.floats(-(2.0**126), 2.0**126, width=32)
    )
)
def test_values_anywhere_in_float32_are_within_the_bound(encoding, stacked):
    results = exchanged([[own] for own in stacked], encoding)
    exact = stacked.astype(np.float64).sum(axis=0)
    assert (np.abs(results[0][0] - exact) <= bound(stacked, encoding)).all()


@EITHER
@settings(max_examples=25)
@given(
    stacked=arrays(
        np.float32,
        (2, 6),
        elements=st.sampled_from(
            np.float32([np.inf, -np.inf, np.nan, 1.0, -3e38, 2e-30, 0.0]).tolist()
        ),
    )
)
def test_what_is_not_finite_stays_so_and_leaves_its_neighbors_alone(encoding, stacked):
    result = exchanged([[own] for own in stacked], encoding)[0][0]
    with np.errstate(invalid="ignore", over="ignore"):
        exact = stacked[0] + stacked[1]
    np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
    infinite = np.isinf(exact)
    np.testing.assert_array_equal(result[infinite], exact[infinite])
    finite = np.isfinite(exact)
    allowed = bound(stacked, encoding)[finite]
    assert (np.abs(result[finite] - exact[finite]) <= allowed).all()


def test_the_bound_is_not_far_above_what_is_lost():
    for encoding in ENCODINGS.values():
        stacked = gradients_of(0, 4, 1000, 1.0)
        error = exchanged([[own] for own in stacked], encoding)[0][0] - stacked.sum(0)
        assert np.abs(error).max() > 0.1 * bound(stacked, encoding).max()


@EITHER
def test_every_replica_ends_with_the_same_bits(encoding):
    stacked = gradients_of(1, 3, 50, 30.0)
    split = [[own[:20].reshape(4, 5), own[20:]] for own in stacked]
    results = exchanged(split, encoding)
    assert [tensor.shape for tensor in results[0]] == [(4, 5), (30,)]
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert one.tobytes() == same.tobytes()


def test_powers_of_two_arrive_exactly():
    gradients = [[np.float32([2.0**-20, 1.0, 0.0, -(2.0**8)])]] * 2
    for encoding in ENCODINGS.values():
        for mean, sums in ((True, 1), (False, 2)):
            result = exchanged(gradients, encoding, is_mean=mean)[1][0]
            np.testing.assert_array_equal(result, sums * gradients[0][0])


def test_bfloat16_shows_what_is_beyond_its_range_as_infinite():
    largest = float(np.finfo(np.float32).max)
    gradients = [[np.float32([largest, BFLOAT16_MAX])], [np.zeros(2, np.float32)]]
    result = exchanged(gradients, BFLOAT16)[0][0]
    assert np.isinf(result[0])
    assert np.isfinite(result[1])


def test_sums_are_not_in_16_bits():
    # 256 + 1 is 256 in bfloat16: added one by one, in 16 bits, the ones would vanish.
    gradients = [[np.float32([256.0])], *[[np.float32([1.0])]] * 7]
    assert exchanged(gradients, BFLOAT16)[0][0] == 264.0


def test_buckets_start_with_the_last_gradients_and_cut_none():
    sizes = [10, 2, 3, 100, 4]
    buckets = buckets_of(sizes, bucket_bytes=20)
    assert [bucket.places for bucket in buckets] == [(4,), (3,), (2, 1), (0,)]
    assert [bucket.sizes for bucket in buckets] == [(4,), (100,), (3, 2), (10,)]
    assert buckets_of(sizes, 2**20)[0].places == (4, 3, 2, 1, 0)
    assert buckets_of([], 20) == ()


@given(sizes=st.lists(st.integers(0, 50)), bucket_bytes=st.integers(1, 100))
def test_each_gradient_is_in_one_bucket_and_each_element_in_one_shard(
    sizes, bucket_bytes
):
    buckets = buckets_of(sizes, bucket_bytes)
    assert sorted(p for b in buckets for p in b.places) == list(range(len(sizes)))
    for bucket in buckets:
        assert len(bucket.places) == 1 or 2 * bucket.elements <= bucket_bytes
        shards = bucket.shards(3)
        assert sum(shards) == bucket.elements
        assert max(shards) - min(shards) <= 1


def test_half_the_bytes_of_resnet50_travel_in_one_collective():
    sizes = [math.prod(shape) for shape in resnet50_shapes()]
    assert (len(sizes), sum(sizes)) == (161, 25_557_032)
    for replicas, megabytes in ((2, "102.228"), (8, "715.597")):
        one = to_one_device(sizes, replicas)
        for encoding in ENCODINGS.values():
            buckets = buckets_of(sizes, DEFAULT_BUCKET_BYTES)
            fused = in_16_bits(buckets, encoding, replicas)
            assert 10 * fused.collectives <= one.collectives
            assert fused.collectives == 1
            # Half, and an exponent of two bytes per message.
            assert 2 * fused.bytes_moved <= one.bytes_moved * (1 + 1e-6)
            text = f"fused {encoding.dtype}: 1 collectives, {megabytes} MB"
            assert str(fused) == text
