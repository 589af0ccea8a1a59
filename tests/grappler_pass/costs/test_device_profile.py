"""Profiles load, refuse nonsense, and are chosen as promised."""

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grappler_pass.costs import (
    DeviceKey,
    DeviceProfile,
    GpuKey,
    ProfileError,
    calibrated_path,
    calibrated_profile,
    keep_profile,
    nearest_to,
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
    return {key: value for key, value in data().items() if key != name}


def with_class(axes, *seconds):
    entry = {"axes": axes, "seconds": {"float32": [*seconds]}}
    return data(classes={"Tanh": entry})


def with_roofline(**changes):
    return data(roofline={**data()["roofline"], **changes})


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_profile_loads_and_tells_where_it_comes_from(name):
    profile = DeviceProfile.load(name)
    assert profile.name == name
    assert {"date", "device", "how"} <= set(profile.provenance)
    assert profile.device is None
    if profile.kind == "gpu":
        how = "measured on an H100" if name[:2] == "h1" else "rates"
        assert how in profile.provenance["how"]
        assert profile.provenance["sources"]
        assert not profile.grids


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cpu-genric", r"; did you mean cpu-generic\?"),
        ("xyzzy", r"xyzzy.\. Known are a100"),
        ("./absent.json", "no device profile at"),
        ("/", "cannot read"),
    ],
)
def test_what_is_no_profile_is_named(name, message):
    with pytest.raises(ProfileError, match=message):
        DeviceProfile.load(pathlib.Path(name) if "/" in name else name)


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
        (with_class({"rows": [1]}, 1.0), r"has axes \['rows'\]"),
        (with_class({"elements": [1, 2]}, 1.0), "holds 1 values for 2 points"),
        (with_class({"elements": [1]}, -1.0), "not positive"),
        (with_class({"elements": [2, 1]}, 1.0, 1.0), "does not increase"),
        (with_roofline(overhead_seconds=0), "overhead"),
        (with_roofline(matrix_flops={}), "float32"),
        (with_roofline(matrix_flops="all"), "garbles"),
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
    ("model", "flags", "onednn", "expected"),
    [
        ("A CPU", "avx2", True, "cpu-generic"),
        ("A CPU", "avx2 avx512f", True, "cpu-generic"),
        ("A CPU", "avx512f avx512_bf16", True, "cpu-avx512-bf16"),
        ("AMD EPYC", "avx512f avx512_bf16", True, "cpu-avx512-bf16"),
        (INTEL, "avx512f avx512_bf16", True, "cpu-intel-avx512-bf16"),
        (INTEL, "avx512f avx512_bf16", False, "cpu-generic"),
        (INTEL, "avx512f avx512_bf16 amx_bf16", True, "cpu-amx-bf16"),
        ("A CPU", "avx512f avx512_bf16 amx_bf16", True, "cpu-amx-bf16"),
        ("A CPU", "avx512f avx512_bf16 amx_bf16", False, "cpu-generic"),
        ("aarch64", "asimd bf16 sve", True, "cpu-generic"),
        ("A CPU", "", False, "cpu-generic"),
    ],
)
def test_a_cpu_is_chosen_by_maker_flags_and_onednn(model, flags, onednn, expected):
    key = DeviceKey(model, frozenset(flags.split()), 2, onednn)
    assert nearest_to(key) == expected


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
        ("A GPU", None, "cpu-generic"),
    ],
)
def test_a_gpu_is_chosen_by_its_capability(gpu, capability, expected):
    assert nearest_to(GpuKey(gpu, capability)) == expected


VERSIONS = st.tuples(st.integers(0, 20), st.integers(0, 9))


@given(st.text(), st.frozensets(st.text()), st.booleans(), VERSIONS)
def test_whatever_the_device_there_is_a_profile(name, flags, onednn, capability):
    assert nearest_to(DeviceKey(name, flags, 2, onednn)) in SHIPPED
    assert nearest_to(GpuKey(name, capability)) in SHIPPED


@pytest.mark.parametrize(
    ("key", "is_unknown"),
    [
        (DeviceKey("aarch64", frozenset({"asimd", "bf16"}), 2, onednn=True), True),
        (DeviceKey("Some CPU", frozenset(), 2, onednn=True), True),
        (DeviceKey("Some CPU", frozenset({"avx2"}), 2, onednn=True), False),
        (GpuKey("A GPU", None), True),
        (GpuKey("NVIDIA L4", (8, 9)), False),
    ],
)
def test_the_profile_of_what_nothing_like_was_measured_says_so(
    tmp_path, key, is_unknown
):
    note = profile_for(None, key, tmp_path).note
    assert (
        "has not been measured" in note and "tf-amp calibrate" in note
    ) == is_unknown
    own = DeviceProfile.from_json(data(device=str(key)))
    keep_profile(own, calibrated_path(tmp_path, key))
    assert profile_for(None, key, tmp_path).note == ""


def test_a_measured_profile_wins_on_the_device_it_was_measured_on(tmp_path):
    profile = DeviceProfile.from_json(data())
    keep_profile(profile, calibrated_path(tmp_path, KEY))
    assert profile_for(None, KEY, tmp_path) == profile
    assert profile_for("t4", KEY, tmp_path).name == "t4"
    # What was measured on the CPU says nothing of a GPU, known or not.
    for gpu in (GpuKey("Tesla T4", (7, 5)), GpuKey("A GPU", None)):
        assert profile_for(None, gpu, tmp_path).name == nearest_to(gpu)
    assert profile_for(None, KEY, None).name == "cpu-avx512-bf16"


GPU = GpuKey("NVIDIA L4", (8, 9), "580.1", tf32=True)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        (KEY, {"model": "Other CPU"}),
        (KEY, {"flags": frozenset({"avx2"})}),
        (KEY, {"threads": 2}),
        (KEY, {"onednn": False}),
        (KEY, {"float32_products": "bf16"}),
        (GPU, {"model": "NVIDIA T4"}),
        (GPU, {"capability": (9, 0)}),
        (GPU, {"driver": "570.1"}),
        (GPU, {"tf32": False}),
    ],
)
def test_a_measured_profile_serves_its_own_device_and_no_other(tmp_path, key, change):
    other = key._replace(**change)
    own = DeviceProfile.from_json(data(device=str(key)))
    keep_profile(own, calibrated_path(tmp_path, key))
    assert calibrated_profile(tmp_path, key) == own
    assert calibrated_profile(tmp_path, other) is None
    # Nor is one believed that was moved from another device.
    keep_profile(own, calibrated_path(tmp_path, other))
    assert calibrated_profile(tmp_path, other) is None
    own = DeviceProfile.from_json(data(device=str(other)))
    keep_profile(own, calibrated_path(tmp_path, other))
    assert calibrated_profile(tmp_path, other) == own
