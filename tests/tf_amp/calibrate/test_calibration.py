"""Calibration measures the classes that pricing looks up, in the time it is given."""

import functools
import math
import re

import pytest
import tensorflow as tf

from benchmarks.ship_profile import FINE
from grappler_pass.costs import (
    CostModel,
    DeviceKey,
    DeviceProfile,
    OpCall,
    TensorSpec,
    attrs_from_node_def,
    keep_profile,
)
from grappler_pass.costs.op_classes import BATCHED_BIAS, axes_of
from grappler_pass.costs.op_work import in_batches, works_of
from tf_amp.calibrate import profile as profiling
from tf_amp.calibrate import readings
from tf_amp.calibrate.cases import COARSE, Case, Sizes, all_cases, points_of
from tf_amp.calibrate.profile import classes_from, roofline_from
from tf_amp.calibrate.readings import Reading, Turns, medians_of
from tf_amp.commands import calibrate as calibrating
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError, NotMeasurableError
from tf_amp.run import progress

KEY = DeviceKey("This CPU", frozenset({"avx2"}), threads=2, onednn=True)
TINY = Sizes(
    elements=(1 << 10, 1 << 12, 1 << 13, 1 << 14),
    matrix=(8, 64),
    batch=(2,),
    batched_matrix=(8, 16),
    pixels=(64,),
    channels=(16,),
    rows=(8, 64),
    columns=(16, 64),
)
CASES = {
    f"{case.op_class} {case.label or ''}".strip(): case for case in all_cases(FINE)
}


def spec_of(tensor):
    shape = None if tensor.shape.rank is None else tuple(tensor.shape)
    return TensorSpec(shape, tensor.dtype.name)


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_measured_is_what_pricing_looks_up(name):
    case = CASES[name]
    assert tuple(case.axes) == axes_of(case.op_class)
    points = points_of(case)
    for point in (points[0], points[len(points) // 2], points[-1]):
        with tf.Graph().as_default():
            tensors = [
                tf.compat.v1.placeholder(tf.float32, shape)
                for shape in case.shapes(point)
            ]
            operation = case.build(*tensors, point=point).op
            call = OpCall(
                operation.type,
                attrs_from_node_def(operation.node_def),
                tuple(map(spec_of, operation.inputs)),
                tuple(map(spec_of, operation.outputs)),
            )
        works = works_of(call, "float32")
        if case.op_class == BATCHED_BIAS:
            # It is a price of the fused product.
            fused = {"fused_ops": (b"BiasAdd",)}
            specs = tuple(map(spec_of, tensors))
            call = OpCall("_FusedMatMul", fused, specs, call.outputs)
            works = in_batches(call, "bfloat16")
        found = [(work.op_class, work.point) for work in works]
        if call.op == "Cast":
            assert call.outputs[0].elements == point[0]
        else:
            assert (case.op_class, point) in found


def test_every_class_is_measured_once():
    assert len(CASES) == len(all_cases(FINE)) == len(all_cases(COARSE))


def test_a_quick_calibration_gives_a_profile_that_prices(tmp_path):
    path, reported = tmp_path / "cache" / "mine.json", []
    with progress.listened_to(lambda *each: reported.append(each)):
        profile = profiling.calibrate(
            2.0, key=KEY, sizes=TINY, dtypes=("float32", "bfloat16")
        )
    assert reported[0][0] == "calibrating matmul" and reported[0][2] in (1, 2)
    assert keep_profile(profile, path) == path
    assert DeviceProfile.load(path) == profile
    assert profile.device == str(KEY)
    assert profile.provenance["tensorflow"] == tf.__version__
    model = CostModel(profile)
    a, b, c = (TensorSpec(shape, "float32") for shape in ((8, 8), (8, 16), (8, 16)))
    price = model.price(OpCall("MatMul", {}, (a, b), (c,)), "float32")
    assert price.source == "profile"
    assert 1e-8 < price.seconds < 1e-2


def test_a_point_that_is_measured_again_counts_by_the_median():
    (case,) = (case for case in all_cases(TINY) if case.op_class == "Tanh")
    point = points_of(case)[-1]
    found = {}
    # A busy machine may hide it now and then.
    while len(found.get(("Tanh", "float32", point), ())) < 3:
        readings.measure_into(found, case, point, ("float32",), Turns(0.0, least=3))
    ((place, seconds),) = found.items()
    assert place == ("Tanh", "float32", point)
    assert len(seconds) == 3
    assert medians_of(found)[place] == sorted(seconds)[1]


class Clock:
    """A clock that only measurements move, by the more the more turns they take."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(profiling.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(profiling, "call_seconds", self.call)
        monkeypatch.setattr(profiling, "measure_into", self.measure)

    def call(self):
        self.now += 4.0
        return 1e-4

    def measure(self, found, case, point, dtypes, turns, place):
        self.now += turns.seconds * (20.0 if case.op_class == "matmul" else 5.0)
        for dtype in dtypes:
            found.setdefault((case.op_class, dtype, point), []).append(1e-6)


@pytest.mark.parametrize("seconds", [20.0, 60.0, 61.3, 300.0])
def test_all_of_a_calibration_takes_no_longer_than_it_may(seconds, monkeypatch):
    clock = Clock(monkeypatch)
    profiling.calibrate(seconds, key=KEY, sizes=TINY)
    assert 0.9 * seconds < clock.now <= seconds


@pytest.mark.parametrize("seconds", [math.nan, -1.0, 0.0])
def test_a_time_that_is_none_ends_after_what_is_needed(seconds, monkeypatch):
    Clock(monkeypatch)
    measured = profiling.measure_cases(all_cases(TINY), ("float32",), seconds)
    assert {key[0] for key in measured} == {"matmul", "AddV2"}


def test_a_place_for_the_result_is_asked_for_before_it_is_measured(monkeypatch):
    homeless = AmpConfig(cache_dir=None)
    monkeypatch.setattr(AmpConfig, "from_env", lambda: homeless)
    with pytest.raises(ConfigError, match="--out or TF_AMP_CACHE"):
        calibrating.calibrate_device("CPU:0", 60.0, None)


@pytest.fixture
def quick(monkeypatch):
    quick = functools.partial(profiling.calibrate, sizes=TINY)
    monkeypatch.setattr(profiling, "calibrate", quick)


def test_what_cannot_be_written_ends_with_1_whatever_older_file_is_there(
    tmp_path, quick
):
    occupied = tmp_path / "occupied"
    # The name has room for the file, not for the draft that is written beside it.
    long = tmp_path / ("p" * 250)
    for path in (occupied, long):
        path.write_text("older")
    for path in (occupied / "mine.json", long):
        assert calibrating.calibrate_device("CPU:0", 0.0, path) == 1
    assert long.read_text() == "older"


def test_what_has_changed_is_said_at_the_end(tmp_path, quick, monkeypatch, capsys):
    monkeypatch.setenv("TF_AMP_CACHE", str(tmp_path))
    rate = r"(?:[\d,]+\.\d|unknown)"
    changes = (
        rf"  large products in float32: {rate} -> {rate} GFLOP/s\n"
        rf"  large products in bfloat16: {rate} -> {rate} GFLOP/s\n"
        rf"  memory: {rate} -> {rate} GB/s\n"
    )
    measured = r"threads: kept in .*\n\d+ kinds of operations were measured; "
    so_far = measured + "the profile so far was "
    assert calibrating.calibrate_device("CPU:0", 0.0, None) == 0
    from_now_on = r"Programs that start from now on plan by it\.\n"
    first = capsys.readouterr().out
    assert re.search(rf"{so_far}that of cpu-\S+:\n{changes}{from_now_on}$", first)
    # Each begins where the one before has ended.
    ends = re.findall(r" -> (\S+)", first)
    monkeypatch.setenv("TF_AMP_DEVICE_PROFILE", "v100")
    assert calibrating.calibrate_device("CPU:0", 0.0, None) == 0
    unused = r"TF_AMP_DEVICE_PROFILE=v100 goes before it; unset that\.\n"
    again = capsys.readouterr().out
    assert re.search(rf"{so_far}measured on 2\d+-\d+-\d+:\n{changes}{unused}$", again)
    assert re.findall(r": (\S+) ->", again) == ends
    assert calibrating.calibrate_device("CPU:0", 0.0, tmp_path / "mine.json") == 0
    named = f"TF_AMP_DEVICE_PROFILE={tmp_path}/mine.json plans by it.\n"
    assert capsys.readouterr().out.endswith(named)


def test_a_point_too_large_to_measure_is_extended_in_proportion():
    case = Case(
        "matmul",
        {"m": (1, 2), "k": (1, 2), "n": (1,)},
        lambda point: (point,),
        lambda value, point: value,
        flops=lambda point: 1e12 if point == (2, 2, 1) else 1.0,
    )
    measured = {
        ("matmul", "float32", (1, 1, 1)): 1.0,
        ("matmul", "float32", (1, 2, 1)): 2.0,
        ("matmul", "float32", (2, 1, 1)): 2.0,
    }
    classes = classes_from([case], measured)
    assert classes["matmul"]["seconds"]["float32"] == [1.0, 2.0, 2.0, 4.0]
    del measured["matmul", "float32", (1, 2, 1)]
    assert classes_from([case], measured) == {}


def test_a_point_that_is_noise_takes_no_longer_than_the_next_larger_one():
    case = Case("Tanh", {"elements": (1, 2, 4)}, lambda point: (point,), tf.tanh)
    measured = {("Tanh", "float32", (2,)): 2.0, ("Tanh", "float32", (4,)): 3.0}
    classes = classes_from([case], measured)
    assert classes["Tanh"]["seconds"]["float32"] == [2.0, 2.0, 3.0]


def test_a_difference_below_the_clocks_noise_is_no_reading():
    noisy = Reading.of([1.0e-5, 1.4e-5, 0.9e-5, 1.2e-5, 1.1e-5])
    assert noisy.minus(Reading.of([1.0e-5, 1.1e-5, 0.8e-5, 1.3e-5])) is None
    assert noisy.minus(Reading.of([0.9, 1.0, 1.1])) is None
    found = Reading.of([1.0, 1.1, 0.9]).minus(noisy)
    assert found.seconds == pytest.approx(1.0, rel=1e-3)


def test_what_is_noise_makes_no_profile(monkeypatch):
    def noise(*args):
        return None

    monkeypatch.setattr(readings, "reading_of", noise)
    with pytest.raises(NotMeasurableError, match="AddV2 and matmul"):
        profiling.calibrate(0.0, key=KEY, sizes=TINY)


def test_a_roofline_needs_products_and_additions_in_float32():
    entry = {"axes": {"elements": [1]}, "seconds": {"float32": [1.0]}}
    product = {"axes": {"m": [1]}, "seconds": {"bfloat16": [1.0]}}
    with pytest.raises(NotMeasurableError, match="kept: matmul could not"):
        roofline_from({"AddV2": entry, "matmul": product})
