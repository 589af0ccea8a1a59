"""What the environment may say, and what is refused."""

import dataclasses
import itertools
import logging
import pathlib

import pytest

import tf_amp
from grappler_pass.fusions import RULES
from tests.forking import run_forked
from tf_amp.config.amp_config import (
    DTYPE,
    LOSS_SCALING_SWITCH,
    OWN_NAMES,
    REWRITE_SWITCH,
    SWITCH,
    AmpConfig,
    _warn_of_no_home,
    checked_dtype,
    checked_level,
)
from tf_amp.config.loss_scales.words import loss_scale_from_words
from tf_amp.config.setting_values import LIST_PREFIX, ListEdit, edits_from_mapping
from tf_amp.errors import ConfigError
from tf_amp.rewriting.graph_settings import check_config

FULL = AmpConfig(
    enabled=False,
    dtype="float16",
    opt_level="O3",
    device_profile="v100",
    log_dir=pathlib.Path("/tmp/graphs"),
    strict=True,
    cache_dir=pathlib.Path("/tmp/cache"),
    tune="off",
    fuse=(),
    tie=0.05,
    loss_scale=loss_scale_from_words("dynamic:initial=1024,at_minimum=raise"),
    list_edits=(
        ListEdit("add", "allow", ("MyOp", "Einsum")),
        ListEdit("remove", "deny", ("Exp",)),
    ),
    exclude=("^head/", "softmax{1,2}"),
    ranges=pathlib.Path("/tmp/ranges.json"),
    verbose=False,
    check=False,
)


def test_every_field_makes_a_round_trip_through_the_environment():
    defaults = AmpConfig()
    for field in dataclasses.fields(FULL):
        assert getattr(FULL, field.name) != getattr(defaults, field.name)
    environ = FULL.to_env()
    # Off and a dtype: the dtype then stands in its own variable.
    assert AmpConfig.from_env(environ) == FULL


def test_an_empty_environment_asks_for_nothing():
    config = AmpConfig.from_env({"HOME": "/home/someone"})
    assert config == AmpConfig(cache_dir=pathlib.Path("/home/someone/.cache/tf-amp"))


@pytest.mark.parametrize("value", ["1", "true", "on", "TRUE", " On "])
def test_on_leaves_the_type_to_the_device(value):
    config = AmpConfig.from_env({SWITCH: value})
    assert (config.enabled, config.dtype) == (True, None)


@pytest.mark.parametrize("value", ["0", "false", "off", "OFF"])
def test_off_is_off(value):
    assert AmpConfig.from_env({SWITCH: value}).enabled is False


@pytest.mark.parametrize("value", ["bfloat16", "float16"])
def test_a_type_switches_on(value):
    config = AmpConfig.from_env({SWITCH: value, DTYPE: value})
    assert (config.enabled, config.dtype) == (True, value)


def test_the_dtype_variable_chooses_for_a_switch_that_is_just_on():
    assert AmpConfig.from_env({SWITCH: "1", DTYPE: "float16"}).dtype == "float16"


def test_the_rewrite_switch_alone_is_enough():
    assert AmpConfig.from_env({REWRITE_SWITCH: "1"}).enabled is True


def test_a_type_beside_the_level_of_float32_is_how_runs_are_compared():
    config = AmpConfig.from_env({SWITCH: "float16", "TF_AMP_OPT_LEVEL": "O0"})
    assert (config.dtype, config.opt_level) == ("float16", "O0")


@pytest.mark.parametrize(
    "environ",
    [
        {SWITCH: "bfloat16", DTYPE: "float16"},
        {SWITCH: "0", REWRITE_SWITCH: "1"},
        {SWITCH: "1", REWRITE_SWITCH: "0"},
        {LOSS_SCALING_SWITCH: "0", "TF_AMP_LOSS_SCALE": "64"},
        {LOSS_SCALING_SWITCH: "0", "TF_AMP_LOSS_SCALE": "dynamic"},
        {LOSS_SCALING_SWITCH: "1", "TF_AMP_LOSS_SCALE": "none"},
        {f"{LIST_PREFIX}ALLOWLIST_ADD": "Foo", f"{LIST_PREFIX}DENYLIST_ADD": "Foo"},
        {f"{LIST_PREFIX}WHITELIST_ADD": "Foo", f"{LIST_PREFIX}ALLOWLIST_REMOVE": "Foo"},
    ],
)
def test_a_contradiction_names_both_sides(environ):
    with pytest.raises(ConfigError) as caught:
        AmpConfig.from_env(environ)
    for name in environ:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        (SWITCH, "yes please", "bfloat16"),
        (DTYPE, "float8", "float16"),
        ("TF_AMP_OPT_LEVEL", "O9", "O0, O1, O2, O3"),
        ("TF_AMP_TIE", "-0.1", "numbers from 0 to 1"),
        ("TF_AMP_TIE", "little", "numbers from 0 to 1"),
        ("TF_AMP_FUSE", "channels", "on, off and channel_scales"),
        ("TF_AMP_FUSE", "off channel_scales", "on, off and channel_scales"),
        ("TF_AMP_STRICT", "maybe", "true"),
        (REWRITE_SWITCH, "2", "off"),
        ("TF_AMP_TUNE", "sometimes", "on and off"),
        ("TF_AMP_TUNE", "budget:-3", "on and off"),
        ("TF_AMP_EXCLUDE", "(head", "regular expression"),
    ],
)
def test_an_unknown_value_is_quoted_with_what_is_allowed(name, value, allowed):
    with pytest.raises(ConfigError) as caught:
        AmpConfig.from_env({name: value})
    for part in (name, value, allowed):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("value", "fuse"),
    [
        ("off", ()),
        ("On", RULES),
        ("", RULES),
        ("channel_scales", RULES[:1]),
        (" gelu_gradients, channel_scales,channel_scales", (RULES[0], RULES[-1])),
    ],
)
def test_rewrites_beside_types_are_named_or_all_switched(value, fuse):
    assert AmpConfig.from_env({"TF_AMP_FUSE": value}).fuse == fuse


@pytest.mark.parametrize(
    ("value", "tune"), [("off", "off"), ("0", "off"), ("On", "on"), ("true", "on")]
)
def test_tuning_is_switched_like_anything_else(value, tune):
    assert AmpConfig.from_env({"TF_AMP_TUNE": value}).tune == tune


@pytest.mark.parametrize("value", ["budget", "FULL", "budget:60", "budget:0.000001"])
def test_earlier_words_for_tuning_mean_on_and_one_line_says_so(value):
    code = f"""
from tf_amp.config.amp_config import AmpConfig
for _ in range(3):
    print(AmpConfig.from_env({{"TF_AMP_TUNE": {value!r}}}).tune)
"""
    done = run_forked(code)
    assert done.lines() == ["on"] * 3
    assert done.err.count(f"TF_AMP_TUNE={value.lower()} means on") == 1


def test_an_unknown_name_suggests_the_near_one():
    with pytest.raises(ConfigError, match="did you mean TF_AMP_OPT_LEVEL"):
        AmpConfig.from_env({"TF_AMP_OPTLEVEL": "O2"})
    with pytest.raises(ConfigError, match=r"did you mean .*ALLOWLIST_ADD"):
        AmpConfig.from_env({f"{LIST_PREFIX}ALOWLIST_ADD": "Foo"})
    with pytest.raises(ConfigError, match=f"did you mean {SWITCH}\\?"):
        AmpConfig.from_env({"TF_ENABLE_AUTO_MIXED_PRECISON": "1"})


def test_variables_of_tensorflow_itself_are_left_to_it():
    theirs = {f"{LIST_PREFIX}IGNORE_PERFORMANCE": "1", f"{LIST_PREFIX}LEVEL": "X"}
    assert AmpConfig.from_env(theirs) == AmpConfig.from_env({})


def test_old_and_new_names_of_a_list_add_up():
    config = AmpConfig.from_env(
        {f"{LIST_PREFIX}GRAYLIST_ADD": "A, B,", f"{LIST_PREFIX}INFERLIST_ADD": "C"}
    )
    ops = [edit.ops for edit in config.list_edits]
    assert sorted(itertools.chain(*ops)) == ["A", "B", "C"]
    assert {(e.verb, e.list_name) for e in config.list_edits} == {("add", "infer")}


def test_ops_under_an_old_and_a_new_name_reach_another_process():
    config = AmpConfig.from_env(
        {f"{LIST_PREFIX}GRAYLIST_ADD": "A,B", f"{LIST_PREFIX}INFERLIST_ADD": "C,A"}
    )
    (told,) = (v for k, v in config.to_env().items() if k.startswith(LIST_PREFIX))
    assert sorted(told.split(",")) == ["A", "B", "C"]
    again = AmpConfig.from_env(config.to_env())
    assert again.to_env() == config.to_env()


def test_empty_values_mean_unset():
    names = (*OWN_NAMES, SWITCH, REWRITE_SWITCH, f"{LIST_PREFIX}DENYLIST_ADD")
    empty = dict.fromkeys(names, "")
    assert AmpConfig.from_env({**empty, "HOME": "/h"}) == AmpConfig.from_env(
        {"HOME": "/h"}
    )


def test_lists_from_python_say_what_keys_are_allowed():
    edits = edits_from_mapping({"add": {"allow": ["A"]}, "remove": {"deny": "B"}})
    assert edits == (
        ListEdit("add", "allow", ("A",)),
        ListEdit("remove", "deny", ("B",)),
    )
    with pytest.raises(ConfigError, match=r"'white'.*allow, infer"):
        edits_from_mapping({"add": {"white": ["A"]}})
    with pytest.raises(ConfigError, match="'insert'"):
        edits_from_mapping({"insert": {"allow": ["A"]}})


@pytest.mark.parametrize(
    ("lists", "named"),
    [
        ("x", r"lists: received 'x'; allowed are mappings .*add, remove"),
        (["MatMul"], r"lists: received \['MatMul'\]"),
        ({"add": ["MatMul"]}, r"lists\['add'\]: .*mappings .*allow, infer"),
        ({"add": {"allow": None}}, r"lists\['add'\]\['allow'\]: received None"),
        ({"remove": {"deny": [5]}}, r"received 5; allowed are names of ops"),
        ({5: {}}, r"lists: received 5; allowed are the keys add, remove"),
    ],
)
def test_lists_of_a_wrong_type_say_what_is_allowed(lists, named):
    with pytest.raises(ConfigError, match=named):
        edits_from_mapping(lists)


@pytest.mark.parametrize("way", ["ADD", "REMOVE"])
def test_an_op_that_tensorflow_does_not_know_is_named_with_its_variable(way):
    variable = f"{LIST_PREFIX}DENYLIST_{way}"
    for ops in ("Exp,MatMull", "MatMull"):
        config = AmpConfig.from_env({variable: ops})
        with pytest.raises(ConfigError, match=f"{variable}: received 'MatMull'"):
            check_config(config)


def test_an_op_that_is_unknown_to_a_mapping_is_named_with_its_list():
    edits = edits_from_mapping({"remove": {"allow": ["MatMull"]}})
    named = r"lists\['remove'\]: received 'MatMull' for the allow list"
    with pytest.raises(ConfigError, match=named):
        check_config(AmpConfig(list_edits=edits))


def test_levels_and_types_are_checked_for_python_callers():
    assert (checked_level("o2"), checked_dtype("BFloat16")) == ("O2", "bfloat16")
    with pytest.raises(ConfigError, match="opt_level: received 'O7'"):
        checked_level("O7")
    with pytest.raises(ConfigError, match="dtype: received 32"):
        checked_dtype(32)


def test_patterns_are_read_from_a_file_with_comments(tmp_path, monkeypatch):
    file = tmp_path / "exclude.txt"
    file.write_text("# found by bisection\n^head/MatMul$\n\n  softmax \n")
    monkeypatch.setenv("HOME", str(tmp_path))
    config = AmpConfig.from_env({"TF_AMP_EXCLUDE": "^first @~/exclude.txt"})
    assert config.exclude == ("^first", "^head/MatMul$", "softmax")


def test_a_file_of_patterns_that_is_missing_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"TF_AMP_EXCLUDE.*none\.txt cannot be read"):
        AmpConfig.from_env({"TF_AMP_EXCLUDE": f"@{tmp_path}/none.txt"})


def test_a_user_without_a_home_keeps_nothing_and_is_told_once(monkeypatch, caplog):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", no_home)
    _warn_of_no_home.cache_clear()
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert [AmpConfig.from_env({}).cache_dir for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert "no home folder" in record.getMessage()
    assert "TF_AMP_CACHE" in record.getMessage()
    named = AmpConfig.from_env({"XDG_CACHE_HOME": "/cache"})
    assert named.cache_dir == pathlib.Path("/cache/tf-amp")


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("strict", "no", "True and False"),
        ("strict", 1, "True and False"),
        ("device_profile", 5, "a profile's name, or its path"),
        ("log_dir", 5, "a path"),
        ("log_dir", "", "a path"),
        ("ranges", b"ranges.json", "a path"),
    ],
)
def test_a_wrong_argument_is_quoted_with_what_is_allowed(argument, value, allowed):
    with pytest.raises(ConfigError) as caught:
        tf_amp.enable(**{argument: value})
    assert f"{argument}: received {value!r}" in str(caught.value)
    assert allowed in str(caught.value)
