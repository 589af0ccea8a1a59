"""Which 16-bit type and profile suit which device."""

import pytest
import tensorflow as tf

from grappler_pass.costs import DeviceProfile, ProfileError
from tf_amp import devices
from tf_amp.configuration import settings
from tf_amp.configuration.config import AmpConfig
from tf_amp.devices import Device

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
    with pytest.raises(ProfileError, match="did you mean 'a100'"):
        devices.choose(AmpConfig(device_profile="a10"), "CPU")


def test_a_graph_is_planned_for_the_device_it_is_placed_on(present):
    def graph(*places):
        graph_def = tf.compat.v1.GraphDef()
        for place in places:
            graph_def.node.add(device=place and f"/job:localhost/device:{place}:0")
        return graph_def

    present(A100)
    assert settings.target_device_type(graph("CPU", "CPU")) == "CPU"
    assert settings.target_device_type(graph("CPU", "GPU")) == "GPU"
    assert settings.target_device_type(graph("CPU", "")) == "GPU"
    present()
    assert settings.target_device_type(graph("CPU", "")) == "CPU"


def test_the_key_of_this_cpu_names_what_decides_its_speed():
    key = devices.cpu_key()
    assert key.model
    assert key.threads >= 1
    assert key.flags <= devices.cpu_flags()
