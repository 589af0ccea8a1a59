"""Profiles load, refuse nonsense, and are chosen as promised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grappler_pass.costs import (
    DeviceKey,
    DeviceProfile,
    ProfileError,
    calibrated_path,
    calibrated_profile,
    keep_profile,
    nearest_to_cpu,
    nearest_to_gpu,
    profile_for,
)

SHIPPED = DeviceProfile.names()
INTEL = "Intel(R) Xeon(R) Processor"
KEY = DeviceKey("Some CPU", frozenset({"avx2", "avx512_bf16"}), threads=4, onednn=True)


def data(**changes):
    profile = {
        "format": 1,
        "name": "mine",
        "kind": "cpu",
        "description": "a CPU",
        "provenance": {"date": "2026-01-01", "device": "a CPU", "how": "guessed"},
        "device": str(KEY),
        "roofline": {
            "overhead_seconds": 1e-6,
            "matrix_flops": {"float32": 1e11, "bfloat16": 2e11},
            "vector_flops": {"float32": 1e10},
            "bytes_per_second": {"float32": 1e10},
        },
        "classes": {
            "Tanh": {
                "axes": {"elements": [1, 1000]},
                "seconds": {"float32": [1e-6, 1e-4], "bfloat16": [2e-6, 2e-4]},
            }
        },
    }
    return {**profile, **changes}


def without(name):
    profile = data()
    del profile[name]
    return profile


def with_class(entry):
    return data(classes={"Tanh": entry})


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_loads_and_tells_where_it_comes_from(name):
    profile = DeviceProfile.load(name)
    assert profile.name == name
    assert {"date", "device", "how"} <= set(profile.provenance)
    assert profile.device is None
    if profile.kind == "gpu":
        assert "published rates, not measured" in profile.provenance["how"]
        assert profile.provenance["sources"]
        assert not profile.grids


def test_an_unknown_name_suggests_the_near_one():
    with pytest.raises(ProfileError, match="did you mean 'cpu-generic'"):
        DeviceProfile.load("cpu-genric")
    with pytest.raises(ProfileError, match=r"xyzzy.\. Known are a100"):
        DeviceProfile.load("xyzzy")


def test_a_path_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(ProfileError, match="no device profile at"):
        DeviceProfile.load(tmp_path / "absent.json")


def test_a_folder_is_no_profile(tmp_path):
    with pytest.raises(ProfileError, match="cannot read"):
        DeviceProfile.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format": 1}', "\x00\xff"])
def test_a_garbled_file_is_refused(tmp_path, text):
    path = tmp_path / "garbled.json"
    path.write_text(text)
    with pytest.raises(ProfileError):
        DeviceProfile.load(path)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (data(format=99), "profile format 99, expected 1"),
        (without("roofline"), "roofline"),
        (without("name"), "name"),
        (data(roofline=3), "lacks or garbles"),
        (
            with_class({"axes": {"rows": [1]}, "seconds": {"float32": [1.0]}}),
            r"has axes \['rows'\]",
        ),
        (
            with_class({"axes": {"elements": [1, 2]}, "seconds": {"float32": [1.0]}}),
            "holds 1 values for 2 points",
        ),
        (
            with_class({"axes": {"elements": [1]}, "seconds": {"float32": [-1.0]}}),
            "not positive",
        ),
        (
            with_class(
                {"axes": {"elements": [2, 1]}, "seconds": {"float32": [1.0, 1.0]}}
            ),
            "does not increase",
        ),
        (data(roofline={**data()["roofline"], "overhead_seconds": 0}), "overhead"),
        (data(roofline={**data()["roofline"], "matrix_flops": {}}), "float32"),
        (data(roofline={**data()["roofline"], "matrix_flops": "all"}), "garbles"),
        (data(call_seconds="few"), "lacks or garbles"),
        (data(extends="cpu-generic", scale="twice"), "lacks or garbles"),
        (data(extends="nobody"), "unknown device profile"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(profile, message):
    with pytest.raises(ProfileError, match=message):
        DeviceProfile.from_json(profile)


def test_a_profile_written_and_read_is_the_same(tmp_path):
    profile = DeviceProfile.from_json(data())
    path = tmp_path / "new" / "folder" / "mine.json"
    profile.save(path)
    assert DeviceProfile.load(path) == profile
    assert [entry.name for entry in path.parent.iterdir()] == ["mine.json"]


def test_a_profile_that_extends_another_takes_what_it_lacks():
    base = DeviceProfile.load("cpu-avx512-bf16")
    profile = DeviceProfile.from_json(
        data(extends="cpu-avx512-bf16", scale=2.0, without=["conv."])
    )
    point = (1 << 20,)
    assert profile.grid("Relu", "float32").seconds(point) == pytest.approx(
        2 * base.grid("Relu", "float32").seconds(point)
    )
    assert profile.grid("Tanh", "float32").seconds((1,)) == pytest.approx(1e-6)
    assert profile.grid("conv.forward.9.s1", "float32") is None


# --- choosing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "onednn", "expected"),
    [
        ({"avx2"}, True, "cpu-generic"),
        ({"avx2", "avx512f"}, True, "cpu-generic"),
        ({"avx512f", "avx512_bf16"}, True, "cpu-avx512-bf16"),
        ({"avx512f", "avx512_bf16", "amx_bf16"}, True, "cpu-amx-bf16"),
        ({"avx512f", "avx512_bf16", "amx_bf16"}, False, "cpu-generic"),
        (set(), False, "cpu-generic"),
    ],
)
def test_a_cpu_is_chosen_by_its_flags_and_onednn(flags, onednn, expected):
    key = DeviceKey("A CPU", frozenset(flags), 2, onednn)
    assert nearest_to_cpu(key) == expected


def test_of_two_makers_of_cpus_with_avx512_bf16_each_has_its_profile():
    flags = frozenset({"avx512f", "avx512_bf16"})
    amd, intel = (DeviceKey(m, flags, 2, True) for m in ("AMD EPYC", INTEL))
    assert nearest_to_cpu(amd) == "cpu-avx512-bf16"
    assert nearest_to_cpu(intel) == "cpu-intel-avx512-bf16"
    assert nearest_to_cpu(intel._replace(onednn=False)) == "cpu-generic"
    with_amx = intel._replace(flags=flags | {"amx_bf16"})
    assert nearest_to_cpu(with_amx) == "cpu-amx-bf16"


@pytest.mark.parametrize(
    ("name", "is_faster"), [("cpu-avx512-bf16", True), ("cpu-intel-avx512-bf16", False)]
)
def test_products_of_whole_layers_gain_where_the_units_do(name, is_faster):
    profile = DeviceProfile.load(name)
    float32, low = (
        profile.grid("matmul", dtype).seconds((1024, 1024, 1024))
        for dtype in ("float32", "bfloat16")
    )
    assert (low < float32) == is_faster


@pytest.mark.parametrize(
    ("gpu", "capability", "expected"),
    [
        ("Tesla P100", (6, 0), "cpu-generic"),
        ("Tesla V100-SXM2-16GB", (7, 0), "v100"),
        ("Tesla T4", (7, 5), "t4"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), "a100"),
        ("NVIDIA L4", (8, 9), "a100"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "h100"),
        ("NVIDIA H200", (9, 0), "h200"),
        ("NVIDIA B200", (10, 0), "h100"),
    ],
)
def test_a_gpu_is_chosen_by_its_capability(gpu, capability, expected):
    assert nearest_to_gpu(gpu, capability) == expected


@given(st.text(), st.frozensets(st.text()), st.booleans())
def test_whatever_the_cpu_there_is_a_profile(model, flags, onednn):
    assert nearest_to_cpu(DeviceKey(model, flags, 2, onednn)) in SHIPPED


@given(st.text(), st.tuples(st.integers(0, 20), st.integers(0, 9)))
def test_whatever_the_gpu_there_is_a_profile(name, capability):
    assert nearest_to_gpu(name, capability) in SHIPPED


def test_a_measured_profile_wins_on_the_device_it_was_measured_on(tmp_path):
    profile = DeviceProfile.from_json(data())
    keep_profile(profile, calibrated_path(tmp_path, KEY))
    assert profile_for(None, KEY, tmp_path) == profile
    assert profile_for("t4", KEY, tmp_path).name == "t4"
    assert profile_for(None, KEY, tmp_path, "Tesla T4", (7, 5)).name == "t4"
    # What was measured on the CPU says nothing of a GPU, known or not.
    unknown = profile_for(None, KEY, tmp_path, "A GPU", None)
    assert unknown.name == "cpu-avx512-bf16"
    assert profile_for(None, KEY, None).name == "cpu-avx512-bf16"


@pytest.mark.parametrize(
    "other",
    [
        DeviceKey("Other CPU", KEY.flags, 4, True),
        DeviceKey(KEY.model, frozenset({"avx2"}), 4, True),
        DeviceKey(KEY.model, KEY.flags, 2, True),
        DeviceKey(KEY.model, KEY.flags, 4, False),
        DeviceKey(KEY.model, KEY.flags, 4, True, float32_products="bf16"),
    ],
)
def test_a_measured_profile_serves_no_other_device(tmp_path, other):
    keep_profile(DeviceProfile.from_json(data()), calibrated_path(tmp_path, KEY))
    assert calibrated_profile(tmp_path, other) is None


def test_a_measured_profile_serves_its_own_device_however_products_are_rounded(
    tmp_path,
):
    for key in (KEY, KEY._replace(float32_products="bf16")):
        path = calibrated_path(tmp_path, key)
        own = {**data(), "device": str(key)}
        keep_profile(DeviceProfile.from_json(own), path)
        assert calibrated_profile(tmp_path, key).device == str(key)


def test_a_profile_moved_from_another_device_is_not_believed(tmp_path):
    other = DeviceKey("Other CPU", KEY.flags, 4, True)
    keep_profile(DeviceProfile.from_json(data()), calibrated_path(tmp_path, other))
    assert calibrated_profile(tmp_path, other) is None
