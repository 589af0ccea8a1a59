"""A GPU is measured: shown whole on a CPU that is measured as if it were the GPU."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.costs import (
    CostModel,
    DeviceProfile,
    GpuKey,
    OpCall,
    TensorSpec,
    calibrated_path,
)
from tests.processes import run_python
from tf_amp.calibrate import gpu
from tf_amp.calibrate.cases import Case, Sizes, all_cases, points_of, raw_op
from tf_amp.calibrate.readings import (
    Place,
    Turns,
    chained,
    check_answers,
    measure_into,
    spread_of,
    timing_run,
)
from tf_amp.commands import _doctor_checks
from tf_amp.commands import calibrate as calibrating
from tf_amp.config import devices
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.devices import Device
from tf_amp.errors import ConfigError, NotMeasurableError

ABSENT = "/GPU:7"
V100 = Device("GPU", "/physical_device:GPU:0", "Tesla V100-SXM2-16GB", (7, 0))
A100 = Device("GPU", "/physical_device:GPU:1", "NVIDIA A100-SXM4-40GB", (8, 0))
TINY = Sizes(
    elements=(1 << 16, 1 << 18),
    matrix=(128,),
    batch=(4,),
    batched_matrix=(16, 32),
    pixels=(256,),
    channels=(16,),
    rows=(8, 64),
    columns=(16, 64),
    most_elements=1 << 20,
)
FLOAT32 = ("float32",)


DTYPES = ("float32", "bfloat16")


@pytest.fixture
def as_gpu(monkeypatch):
    """Have the CPU be measured where a GPU is asked for."""
    measure, asked = gpu.calibrate_gpu, []

    def calibrate_gpu(seconds, *, key, device):
        asked.append(device)
        return measure(seconds, key=key, device="/CPU:0", sizes=TINY, dtypes=DTYPES)

    monkeypatch.setattr(gpu, "calibrate_gpu", calibrate_gpu)
    return asked


def present(monkeypatch, *gpus):
    found = (Device("CPU", "/physical_device:CPU:0", "a CPU"), *gpus)
    monkeypatch.setattr(devices, "present_devices", lambda: found)


def test_a_measured_gpu_is_planned_by_its_own_profile(
    tmp_path, monkeypatch, capsys, as_gpu
):
    present(monkeypatch, A100)
    monkeypatch.setenv("TF_AMP_CACHE", str(tmp_path))
    config = AmpConfig.from_env()
    states = [each.state for each in _doctor_checks.found_devices(config)]
    assert states[1].endswith(
        "the nearest that is known; `tf-amp calibrate` measures this GPU"
    )
    assert calibrating.calibrate_device(None, 0.1, None) == 0
    assert as_gpu == ["/GPU:0"]
    said = capsys.readouterr().out
    path = calibrated_path(tmp_path, devices.key_of(A100))
    assert f"{devices.key_of(A100)}: kept in {path}\n" in said
    for line in (
        "the profile so far was that of a100:",
        r"  large products in float32 as TensorFloat-32: \S+ -> [\d,.]+ GFLOP/s",
        r"  start of an operation by the host: 10\.0 -> [\d.]+ microseconds",
        r"All was measured once; more --seconds measure it again\.",
        r"`tf-amp calibrate --device CPU:0` measures the CPU\.",
    ):
        assert re.search(f"{line}\n", said)
    profile = devices.profile_of(config, A100)
    assert profile == DeviceProfile.load(path)
    assert (profile.kind, profile.data["capability"]) == ("gpu", "8.0")
    states = [each.state for each in _doctor_checks.found_devices(config)]
    assert "profile calibrated, measured here on 2" in states[1]
    square = TensorSpec((128, 128), "float32")
    product = OpCall("MatMul", {}, (square, square), (square,))
    price = CostModel(profile).price(product, "float32")
    assert price.source == "profile"
    assert 1e-8 < price.seconds < 1e-2


@pytest.mark.parametrize("tf32", [True, None])
def test_all_that_a_gpu_is_priced_by_is_measured(tf32):
    flag = tf.config.experimental.tensor_float_32_execution_enabled
    before = flag()
    key = GpuKey("A GPU", (7, 0) if tf32 is None else (8, 6), tf32=tf32)
    profile = gpu.calibrate_gpu(0.1, key=key, device="/CPU:0", sizes=TINY)
    assert flag() == before
    roofline = profile.roofline
    # A busy machine may hide what products in 16 bits take.
    exact = {"float32", "tf32"} if tf32 else {"float32"}
    assert exact <= roofline.matrix_flops.keys() <= exact | set(gpu.DTYPES)
    assert set(roofline.vector_flops.values()) == {roofline.matrix_flops["float32"]}
    assert 1e-8 < roofline.dispatch_seconds < 1e-3
    assert profile.call_seconds > roofline.dispatch_seconds
    assert profile.provenance["device"] == profile.device == str(key)
    assert profile.grid("matmul", "float32") and profile.grid("AddV2", "float32")


def test_each_class_of_a_gpu_has_points_to_be_measured():
    counts = {case.op_class: len(points_of(case)) for case in all_cases(gpu.SIZES)}
    assert all(counts.get(name) for name in gpu._CLASSES)
    assert len(set(gpu._CLASSES)) == len(gpu._CLASSES)


def test_the_units_of_the_nearest_gpu_are_kept_in_proportion():
    roofline = DeviceProfile.load("a100").roofline
    exact = roofline.vector_flops["float32"]
    tf32 = roofline.matrix_flops.get("tf32", 2 * exact)
    products = {"float32": exact, "tf32": tf32}
    own = dataclasses.replace(
        roofline, matrix_flops={**roofline.matrix_flops, "float32": exact}
    )
    rates = gpu._rates(dataclasses.asdict(own), products, own)
    assert rates["bytes_per_second"]["float16"] == own.bytes_per_second["float32"]
    assert rates["matrix_flops"] == {**own.matrix_flops, **products}
    assert rates["multiprocessors"] == dataclasses.asdict(own.multiprocessors)
    halves = {
        name: {dtype: rate / 2 for dtype, rate in getattr(own, name).items()}
        for name in ("matrix_flops", "vector_flops", "bytes_per_second")
    }
    half = {"float32": exact / 2, "tf32": tf32 / 2}
    slower = gpu._rates(halves, half, own)["multiprocessors"]
    for name in ("cache_bytes_per_second", "direct_flops"):
        assert slower[name] == getattr(own.multiprocessors, name) / 2
    for dtype, rate in own.multiprocessors.unaligned_flops.items():
        assert slower["unaligned_flops"][dtype] == rate / 2
    assert "multiprocessors" not in gpu._rates(
        halves, products, dataclasses.replace(own, multiprocessors=None)
    )


def test_products_keep_a_gpu_busy_while_its_host_starts_a_chain():
    def products_in_front(place):
        run = timing_run()
        sets = [[run.hold(np.ones((1,), np.float32), place.device)]]
        _, start = chained(run, lambda inputs: tf.tanh(inputs[0]).op, sets, 8, place)
        kinds = [node.type for node in run.graph.get_operations()]
        with run:
            run.callable(start)()
        return kinds.count("MatMul")

    behind = Place("/CPU:0", start_seconds=1e-5, front_side=16, front_seconds=5e-5)
    # Four times what the host takes to start eight ops.
    assert products_in_front(behind) == 7
    assert products_in_front(Place("/CPU:0")) == 0


def case_of(build):
    return Case("Tanh", {"elements": (4,)}, lambda point: (point,), build)


def test_what_has_no_kernel_on_the_device_is_left_out():
    found = {}
    place = Place(ABSENT, start_seconds=1e-6, front_side=8, front_seconds=1e-6)
    measure_into(found, case_of(raw_op("Tanh")), (4,), FLOAT32, Turns(0.0, 3), place)
    assert found == {}


def out_of_memory(*args):
    raise MemoryError


def test_a_gpu_without_memory_ends_it_in_a_sentence():
    def too_large(value, point):
        return tf.numpy_function(out_of_memory, [value], tf.float32)

    def measure(place):
        found = {}
        turns = Turns(0.0, least=3)
        measure_into(found, case_of(too_large), (4,), FLOAT32, turns, place)
        return found

    place = Place("/CPU:0", start_seconds=1e-6, front_side=8, front_seconds=1e-6)
    with pytest.raises(NotMeasurableError) as caught:
        measure(place)
    assert str(caught.value) == (
        "Nothing is kept: CPU:0 has no memory left. End other programs that use it."
    )
    # Of the CPU itself the point is left out.
    assert measure(Place("/CPU:0")) == {}


def test_a_gpu_that_is_lost_ends_it_in_a_sentence(tmp_path, monkeypatch):
    lost = tf.errors.InternalError(None, None, "CUDA_ERROR_ECC_UNCORRECTABLE\nmore")
    with pytest.raises(NotMeasurableError) as caught:
        check_answers(Place(ABSENT), lost)
    assert str(caught.value) == (
        "Nothing is kept: GPU:7 does not answer (CUDA_ERROR_ECC_UNCORRECTABLE). "
        "`nvidia-smi` says what the driver knows of it."
    )
    # One that answers has only lacked a kernel.
    check_answers(Place("/CPU:0"), lost)
    # Nothing is written.
    present(monkeypatch, *[V100] * 8)
    monkeypatch.setenv("TF_AMP_CACHE", str(tmp_path))
    with pytest.raises(NotMeasurableError, match="GPU:7 does not answer"):
        calibrating.calibrate_device("GPU:7", 0.1, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "gpus", "device"),
    [
        (None, (V100, A100), "GPU:0"),
        (None, (A100, V100), "GPU:1"),
        ("gpu:0", (A100, V100), "GPU:0"),
    ],
)
def test_the_gpu_that_plans_go_by_is_measured_unless_one_is_named(
    monkeypatch, name, gpus, device
):
    present(monkeypatch, *gpus)
    assert calibrating._named_device(name)[0] == device


@pytest.mark.parametrize("name", ["GPU:1", "TPU:0", "", "0"])
def test_a_device_that_does_not_exist_is_named_with_those_that_do(monkeypatch, name):
    present(monkeypatch, A100)
    with pytest.raises(ConfigError) as caught:
        calibrating.calibrate_device(name, 0.1, None)
    sees = "TensorFlow sees CPU:0, GPU:0."
    assert str(caught.value) == f"--device: received {name!r}; {sees}"


def test_what_rounds_differ_by_is_known_of_those_measured_again():
    rounds = {("Tanh", "float32", (n,)): [n, 1.1 * n, 1.2 * n] for n in (1, 2, 3)}
    assert spread_of(rounds) == pytest.approx(0.2 / 1.1)
    assert math.isnan(spread_of({("Tanh", "float32", (1,)): [1.0]}))


def test_convolutions_that_were_not_measured_are_as_slow_as_those_that_were():
    (case,) = (c for c in all_cases(gpu.SIZES) if c.op_class == "conv.forward.9.s1")
    roofline = {**DeviceProfile.load("a100").data["roofline"]}
    del roofline["multiprocessors"]
    rates = {**roofline["matrix_flops"], "float32": 1e13, "tf32": 1e14}
    points = points_of(case)
    # Twice as long as by the rate in force, where the units are used to the full.
    seconds = [2 * case.flops(point) / 1e14 for point in points]
    axes = {name: list(sizes) for name, sizes in case.axes.items()}
    entry = {"axes": axes, "seconds": {"float32": seconds}}
    data = {
        **DeviceProfile.load("a100").data,
        "roofline": {**roofline, "matrix_flops": rates},
        "classes": {case.op_class: entry},
    }
    profile = DeviceProfile.from_json(data)
    slower = gpu._convolution_slowdown([case], profile, 1e14)
    assert slower["float32"] == pytest.approx(2.0, rel=0.01)
    assert slower["tf32"] == slower["float32"]


def test_a_process_with_a_cluster_of_its_own_is_not_ended():
    outcome = run_python("""
        from tensorflow.python.grappler.cluster import Cluster

        from tf_amp._tensorflow_private import graphs

        cluster = Cluster(disable_detailed_stats=True)
        print(graphs.multiprocessors())
        """)
    assert outcome.lines() == ["0"]
