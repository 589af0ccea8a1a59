"""What an exchange moves: as calculated, and as counted in graphs that have run."""

import math

from benchmarks.all_reduce import resnet50_shapes
from keras_callbacks.all_reduce import (
    DEFAULT_BUCKET_BYTES,
    ENCODINGS,
    buckets_of,
    in_16_bits,
    to_one_device,
)
from tests.forking import run_forked

COUNTED = """
from benchmarks import all_reduce as b
from keras_callbacks.all_reduce import DEFAULT_BUCKET_BYTES, buckets_of
from keras_callbacks.all_reduce import ENCODINGS
from keras_callbacks.all_reduce import in_16_bits, to_one_device
b.set_up_devices()
shapes = [(30, 20), (20,), (20, 5), (5,)]
rows = {row.way: row for row in b.rows_of(shapes)}
sizes = [600, 20, 100, 5]
one = rows["one device"].sent
print(one.bytes_moved - to_one_device(sizes, 2).bytes_moved)
for way, encoding in ENCODINGS.items():
    buckets = buckets_of(sizes, DEFAULT_BUCKET_BYTES)
    sent = rows[way].sent
    print(sent.bytes_moved - in_16_bits(buckets, encoding, 2).bytes_moved)
    print(one.messages - sent.messages)
"""


def test_counted_bytes_and_messages_are_those_calculated():
    # A step beside the exchange sends its learning rate, and where it is kept.
    one, *fused = map(int, run_forked(COUNTED).lines())
    assert 0 <= one <= 16
    assert all(0 <= over <= 16 for over in fused[::2])
    # Four gradients go there and back; one bucket has two shards, there and back.
    assert fused[1::2] == [4 * 2 - 2 * 2] * 2


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
