"""Which 16-bit type and profile suit which device."""

import functools
import os
import re
import textwrap

import pytest
import tensorflow as tf

from grappler_pass.costs import (
    DeviceProfile,
    ProfileError,
    calibrated_path,
    keep_profile,
)
from tests.forking import run_forked
from tests.onednn import needs_onednn
from tf_amp.config import devices
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.devices import Device
from tf_amp.rewriting import graph_settings
from tf_amp.runtime import _autostart_hooks

CPU = Device("CPU", "/physical_device:CPU:0", "a CPU")
V100 = Device("GPU", "/physical_device:GPU:0", "Tesla V100-SXM2-16GB", (7, 0))
T4 = Device("GPU", "/physical_device:GPU:0", "Tesla T4", (7, 5))
A100 = Device("GPU", "/physical_device:GPU:1", "NVIDIA A100-SXM4-40GB", (8, 0))
H200 = Device("GPU", "/physical_device:GPU:0", "NVIDIA H200", (9, 0))


@pytest.fixture
def present(monkeypatch):
    def set_present(*found):
        monkeypatch.setattr(devices, "present_devices", lambda: (CPU, *found))

    return set_present


def choice_for(device_type, config=None):
    chosen = devices.choose(config or AmpConfig(), device_type)
    names = {kind: profile.name for kind, profile in chosen.profiles}
    return chosen.low_dtype, names.get(device_type)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((V100,), ("float16", "v100")),
        ((T4,), ("float16", "t4")),
        ((A100,), ("bfloat16", "a100")),
        ((H200,), ("bfloat16", "h200")),
        ((V100, A100), ("float16", "v100")),
        ((A100, V100), ("float16", "v100")),
    ],
)
def test_a_gpu_chooses_by_what_it_computes_in(present, gpus, expected):
    present(*gpus)
    assert choice_for("GPU") == expected
    assert choice_for("CPU")[0] == "bfloat16"


def test_every_cpu_gets_bfloat16(present):
    present()
    assert choice_for("CPU")[0] == "bfloat16"
    assert choice_for("CPU", AmpConfig(dtype="float16"))[0] == "float16"


@pytest.mark.parametrize("name", DeviceProfile.names())
def test_a_named_profile_brings_its_own_type(present, name):
    present()
    older = name in ("v100", "t4")
    expected = ("float16" if older else "bfloat16", name)
    for device_type in ("CPU", "GPU"):
        assert choice_for(device_type, AmpConfig(device_profile=name)) == expected


def test_an_unknown_profile_is_refused():
    with pytest.raises(ProfileError, match="did you mean a100"):
        devices.choose(AmpConfig(device_profile="a10"), "CPU")


def test_a_graph_is_planned_for_the_device_it_is_placed_on(present):
    def graph(*places):
        graph_def = tf.compat.v1.GraphDef()
        for place in places:
            graph_def.node.add(device=place and f"/job:localhost/device:{place}:0")
        return graph_def

    present(A100)
    assert graph_settings.target_device_type(graph("CPU", "CPU")) == "CPU"
    assert graph_settings.target_device_type(graph("CPU", "GPU")) == "GPU"
    assert graph_settings.target_device_type(graph("CPU", "")) == "GPU"
    present()
    assert graph_settings.target_device_type(graph("CPU", "")) == "CPU"


def test_the_key_of_this_cpu_names_what_decides_its_speed():
    key = devices.cpu_key()
    assert key.model
    assert key.threads >= 1
    assert key.flags <= devices.cpu_flags()


def in_a_process(variables, code):
    """Return what a process prints whose TensorFlow has computed nothing before."""
    setting = f"import os; os.environ.update({variables!r})"
    return run_forked(f"{setting}\n{textwrap.dedent(code)}").lines()


@functools.cache
def threads_told_and_of_others(chosen, **variables):
    """Return the threads of an op, and how many more a process has after the first."""
    code = f"""
    import tensorflow as tf
    from tf_amp.config import devices
    tf.config.threading.set_intra_op_parallelism_threads({chosen})
    told = devices.cpu_key().threads
    tf.ones([2, 2]) + 1.0
    print(told, len(os.listdir("/proc/self/task")) - told)
    """
    (line,) = in_a_process(variables, code)
    return tuple(map(int, line.split()))


ALL_CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("chosen", "variable", "threads"),
    [
        (0, "7", 7),
        (0, " 7\t", 7),
        (4, "7", 4),
        *((0, text, ALL_CPUS) for text in ("", "0", "many", "7.0", "7x", "9" * 12)),
    ],
)
def test_the_key_has_the_threads_that_tensorflow_starts(chosen, variable, threads):
    _, others = threads_told_and_of_others(5)
    found = threads_told_and_of_others(chosen, TF_NUM_INTRAOP_THREADS=variable)
    assert found == (threads, others)


@needs_onednn
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"TF_SET_ONEDNN_FPMATH_MODE": "BF16"},
        {"TF_SET_ONEDNN_FPMATH_MODE": "bf16"},
        {"ONEDNN_DEFAULT_FPMATH_MODE": "Any"},
        {"ONEDNN_DEFAULT_FPMATH_MODE": "STRICT"},
        {"ONEDNN_DEFAULT_FPMATH_MODE": "fast"},
        {"ONEDNN_DEFAULT_FPMATH_MODE": "", "DNNL_DEFAULT_FPMATH_MODE": "BF16"},
        {"TF_SET_ONEDNN_FPMATH_MODE": "BF16", "ONEDNN_DEFAULT_FPMATH_MODE": "TF32"},
    ],
)
def test_the_key_has_the_type_that_onednn_may_round_products_to(variables):
    code = """
    import tensorflow as tf
    from tf_amp.config import devices
    x = tf.ones([2, 64, 64])
    x @ x
    print("told:" + devices.cpu_key().float32_products)
    print(devices.key_of(devices.present_devices()[0]))
    """
    lines = in_a_process({**variables, "ONEDNN_VERBOSE": "1"}, code)
    (product,) = (line for line in lines if ",exec,cpu,matmul," in line)
    _, _, used = product.partition("attr-fpmath:")
    mode = re.match("[a-z0-9]*", used).group()
    assert f"told:{mode}" in lines
    assert lines[-1].endswith(f"float32 products in {mode}" if mode else "oneDNN on")


@pytest.fixture
def tf32_off():
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(True)


def test_the_key_of_a_gpu_says_where_tf32_is_off(tf32_off):
    for gpu in (A100, H200):
        assert str(devices.key_of(gpu)).endswith(", TF32 off")
    # These have none.
    for gpu in (V100, T4):
        assert devices.gpu_key(gpu).tf32 is None
        assert "TF32" not in str(devices.key_of(gpu))
    tf.config.experimental.enable_tensor_float_32_execution(True)
    assert "TF32" not in str(devices.key_of(A100))


def test_a_gpu_that_was_measured_is_planned_by_that(present, tmp_path, tf32_off):
    def profile_of(device_type):
        return choice_for(device_type, AmpConfig(cache_dir=tmp_path))[1]

    present(A100)
    key = devices.key_of(A100)
    assert profile_of("GPU") == "a100"
    shipped = DeviceProfile.load("a100").data
    own = DeviceProfile.from_json({**shipped, "name": "mine", "device": str(key)})
    keep_profile(own, calibrated_path(tmp_path, key))
    assert profile_of("GPU") == "mine"
    assert profile_of("CPU") != "mine"
    # With the other kind of float32 products it was not measured.
    tf.config.experimental.enable_tensor_float_32_execution(True)
    assert profile_of("GPU") == "a100"


def test_tf32_may_be_off_by_nvidias_variable(monkeypatch):
    for value, is_off in (("", False), ("1", False), ("0", True)):
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", value)
        assert ("TF32 off" in str(devices.key_of(A100))) == is_off


# What is said to XLA in the environment is added to, and never replaced.
BOTH_FLAGS = "--tf_xla_async_compilation --tf_xla_cpu_global_jit"


@pytest.mark.parametrize(
    ("setting", "said", "flags"),
    [
        ("clusters", "", BOTH_FLAGS),
        (
            " Clusters",
            "--tf_xla_max_cluster_size=9",
            f"--tf_xla_max_cluster_size=9 {BOTH_FLAGS}",
        ),
        (
            "clusters",
            "--tf_xla_async_compilation=false",
            "--tf_xla_async_compilation=false --tf_xla_cpu_global_jit",
        ),
        ("clusters", "--tf_xla_auto_jit=2", "--tf_xla_auto_jit=2"),
        ("on", "", BOTH_FLAGS),
        ("off", "", ""),
    ],
)
def test_flags_are_added_where_they_are_asked_for(
    setting: str, said: str, flags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_AMP_COMPILE", setting)
    monkeypatch.setenv("TF_XLA_FLAGS", said)
    _autostart_hooks.add_xla_flags()
    assert os.environ["TF_XLA_FLAGS"] == flags
