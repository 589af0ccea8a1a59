"""The table of settings: what may be said, by whom, and what is refused."""

import dataclasses
import inspect
import logging
import os
import pathlib
import re

import pytest

import tf_amp
from grappler_pass.costs import DeviceProfile
from grappler_pass.fusions import RULES
from tests.forking import run_forked
from tests.fresh_process import output_of
from tests.processes import ROOT
from tf_amp.config import amp_config
from tf_amp.config.amp_config import (
    BENCH_BATCH,
    DTYPE,
    LOG,
    LOSS_SCALING_SWITCH,
    OPTIONS,
    OWN_NAMES,
    PLACES,
    REWRITE_SWITCH,
    SETTINGS,
    SWITCH,
    SWITCHES,
    AmpConfig,
    unknown_settings,
)
from tf_amp.config.loss_scales.words import loss_scale_from_words
from tf_amp.config.setting_values import LIST_PREFIX, ListEdit, edits_from_mapping
from tf_amp.errors import ConfigError
from tf_amp.rewriting.graph_settings import check_config
from tf_amp.runtime import autostart
from tf_amp.tools import running_scripts

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
    memory="save",
    compile="clusters",
)


def test_every_field_makes_a_round_trip_through_the_environment():
    defaults = AmpConfig()
    for field in dataclasses.fields(FULL):
        assert getattr(FULL, field.name) != getattr(defaults, field.name)
    environ = FULL.to_env()
    # Off and a dtype: the dtype then stands in its own variable.
    assert AmpConfig.from_env(environ) == FULL


def test_enable_scopes_options_and_the_page_follow_the_table():
    fields = {field.name for field in dataclasses.fields(AmpConfig)}
    assert fields == {*SETTINGS, "enabled", "list_edits"}
    arguments = {*inspect.signature(tf_amp.enable).parameters}
    # Of these a program says nothing.
    assert arguments == {*SETTINGS, "lists"} - {"cache_dir", "tie"}
    assert {*inspect.signature(tf_amp.mixed_precision_scope).parameters} <= {
        *arguments,
        "enabled",
    }
    # `run` has --quiet for `verbose`.
    assert {*OPTIONS} == arguments - {"lists", "verbose"}
    told = re.findall(r"^      (\w+): ", tf_amp.enable.__doc__, re.M)
    assert {*told} >= arguments
    page = (ROOT / "docs/settings.md").read_text()
    rows = [cell for line in page.splitlines() for cell in line.split("|")[1:2]]
    variables = [name for row in rows for name in re.findall("`(TF_[A-Z_]+)`", row)]
    assert sorted(variables) == sorted([*OWN_NAMES, *amp_config.SWITCHES])
    # So the page says.
    others = {n for n, row in SETTINGS.items() if row.variable != f"TF_AMP_{n.upper()}"}
    assert others == {"log_dir", "cache_dir"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, {"cache_dir": pathlib.Path("/h/.cache/tf-amp")}),
        *(({SWITCH: each}, {"enabled": True}) for each in ("1", "true", "TRUE", " On")),
        *(({SWITCH: each}, {"enabled": False}) for each in ("0", "false", "OFF")),
        ({SWITCH: "float16"}, {"enabled": True, "dtype": "float16"}),
        (
            {SWITCH: "bfloat16", DTYPE: "bfloat16"},
            {"enabled": True, "dtype": "bfloat16"},
        ),
        ({SWITCH: "1", DTYPE: "float16"}, {"enabled": True, "dtype": "float16"}),
        (
            {REWRITE_SWITCH: "1"},
            {"enabled": True, "loss_scale": loss_scale_from_words("none")},
        ),
        # So runs are compared.
        (
            {SWITCH: "float16", "TF_AMP_OPT_LEVEL": "o0"},
            {"enabled": True, "dtype": "float16", "opt_level": "O0"},
        ),
        ({"TF_AMP_FUSE": "off"}, {"fuse": ()}),
        ({"TF_AMP_FUSE": "On"}, {"fuse": RULES}),
        (
            {"TF_AMP_FUSE": f" {RULES[-1]}, channel_scales,channel_scales"},
            {"fuse": (RULES[0], RULES[-1])},
        ),
        ({"TF_AMP_TUNE": "0"}, {"tune": "off"}),
        ({"TF_AMP_TUNE": "true"}, {"tune": "on"}),
        ({"TF_AMP_COMPILE": "Clusters"}, {"compile": "clusters"}),
        # Variables of TensorFlow itself are left to it.
        ({f"{LIST_PREFIX}IGNORE_PERFORMANCE": "1", f"{LIST_PREFIX}LEVEL": "X"}, {}),
        # Empty values mean unset.
        (dict.fromkeys((*OWN_NAMES, SWITCH, f"{LIST_PREFIX}DENYLIST_ADD"), ""), {}),
    ],
)
def test_variables_are_read_as_their_page_says(environ, expected):
    home = {"HOME": "/h"}
    assert AmpConfig.from_env(home | environ) == dataclasses.replace(
        AmpConfig.from_env(home), **expected
    )


@pytest.mark.parametrize(
    "environ",
    [
        {SWITCH: "bfloat16", DTYPE: "float16"},
        {SWITCH: "0", REWRITE_SWITCH: "1"},
        {SWITCH: "1", REWRITE_SWITCH: "0"},
        {LOSS_SCALING_SWITCH: "0", "TF_AMP_LOSS_SCALE": "64"},
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
        ("TF_AMP_LOG", "On", "a path, such as ./On"),
        ("TF_AMP_CACHE", "no", "a path, such as ./no"),
        (REWRITE_SWITCH, "2", "off"),
        ("TF_AMP_TUNE", "sometimes", "on and off"),
        ("TF_AMP_TUNE", "budget:-3", "on and off"),
        ("TF_AMP_COMPILE", "all", "off, clusters, on"),
        ("TF_AMP_EXCLUDE", "(head", "regular expression"),
        ("TF_AMP_EXCLUDE", "@/nowhere/none.txt", "none.txt cannot be read"),
        ("TF_AMP_OPTLEVEL", "", "did you mean TF_AMP_OPT_LEVEL"),
        (f"{LIST_PREFIX}ALOWLIST_ADD", "", "ALLOWLIST_ADD"),
        ("TF_ENABLE_AUTO_MIXED_PRECISON", "", f"did you mean {SWITCH}?"),
    ],
)
def test_what_is_unknown_is_quoted_with_what_is_allowed(name, value, allowed):
    with pytest.raises(ConfigError) as caught:
        AmpConfig.from_env({name: value})
    for part in (name, value, allowed):
        assert part in str(caught.value)


def test_names_that_look_like_settings_are_told_from_others():
    others = "TF_CPP_MIN_LOG_LEVEL TF_ENABLE_ONEDNN_OPTS TF_XLA_FLAGS TF_GPU_ALLOCATOR "
    others += f"{LIST_PREFIX}LEVEL {LIST_PREFIX}LOG_PATH {LIST_PREFIX}DENYLIST_ADD"
    fine = (*SWITCHES, *OWN_NAMES, BENCH_BATCH, *others.split())
    assert unknown_settings(fine) == {}
    unknown = ("TF_AMP_LOSSSCALE", "TF_AMP_PREFERRED_COLOR")
    assert unknown_settings([*fine, *unknown]) == {
        "TF_AMP_LOSSSCALE": "TF_AMP_LOSSSCALE is no setting, and does nothing; did you "
        "mean TF_AMP_LOSS_SCALE?",
        "TF_AMP_PREFERRED_COLOR": "TF_AMP_PREFERRED_COLOR is no setting, and does "
        "nothing",
    }


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("strict", "no", "True and False"),
        ("strict", 1, "True and False"),
        ("device_profile", 5, "a profile's name, or its path"),
        ("log_dir", 5, "a path"),
        ("log_dir", "", "a path"),
        ("ranges", b"ranges.json", "a path"),
        ("opt_level", "O7", "O0, O1, O2, O3"),
        ("dtype", 32, "bfloat16, float16"),
        ("compile", True, "off, clusters, on"),
        ("lists", "x", "mappings with the keys add, remove"),
        ("lists", ["MatMul"], "mappings with the keys add, remove"),
    ],
)
def test_a_wrong_argument_is_quoted_with_what_is_allowed(argument, value, allowed):
    with pytest.raises(ConfigError) as caught:
        tf_amp.enable(**{argument: value})
    assert f"{argument}: received {value!r}" in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("lists", "named"),
    [
        ({"add": ["MatMul"]}, r"lists\['add'\]: .*mappings .*allow, infer"),
        ({"add": {"allow": None}}, r"lists\['add'\]\['allow'\]: received None"),
        ({"add": {"white": ["A"]}}, r"'white'.*allow, infer"),
        ({"remove": {"deny": [5]}}, r"received 5; allowed are names of ops"),
        ({5: {}}, r"lists: received 5; allowed are the keys add, remove"),
        ({"remove": {"allow": ["MatMull"]}}, r"received 'MatMull' for the allow list"),
    ],
)
def test_lists_that_are_wrong_say_what_is_allowed(lists, named):
    with pytest.raises(ConfigError, match=named):
        check_config(AmpConfig(list_edits=edits_from_mapping(lists)))


def test_lists_from_python_are_edits():
    assert edits_from_mapping({"add": {"allow": ["A"]}, "remove": {"deny": "B"}}) == (
        ListEdit("add", "allow", ("A",)),
        ListEdit("remove", "deny", ("B",)),
    )


@pytest.mark.parametrize("verb", ["ADD", "REMOVE"])
def test_an_op_that_tensorflow_does_not_know_is_named_with_its_variable(verb):
    variable = f"{LIST_PREFIX}DENYLIST_{verb}"
    config = AmpConfig.from_env({variable: "Exp,MatMull"})
    with pytest.raises(ConfigError, match=f"{variable}: received 'MatMull'"):
        check_config(config)


def test_ops_under_an_old_and_a_new_name_add_up_and_reach_another_process():
    config = AmpConfig.from_env(
        {f"{LIST_PREFIX}GRAYLIST_ADD": "A, B,", f"{LIST_PREFIX}INFERLIST_ADD": "C,A"}
    )
    assert {(e.verb, e.list_name) for e in config.list_edits} == {("add", "infer")}
    (told,) = (v for k, v in config.to_env().items() if k.startswith(LIST_PREFIX))
    assert sorted(told.split(",")) == ["A", "B", "C"]
    assert AmpConfig.from_env(config.to_env()).to_env() == config.to_env()


@pytest.mark.parametrize("value", ["FULL", "budget:60"])
def test_earlier_words_for_tuning_mean_on_and_one_line_says_so(value):
    code = f"""
from tf_amp.config.amp_config import AmpConfig
for _ in range(3):
    print(AmpConfig.from_env({{"TF_AMP_TUNE": {value!r}}}).tune)
"""
    done = run_forked(code)
    assert done.lines() == ["on"] * 3
    assert done.err.count(f"TF_AMP_TUNE={value.lower()} means on") == 1


def test_patterns_are_read_from_a_file_with_comments(tmp_path, monkeypatch):
    file = tmp_path / "exclude.txt"
    file.write_text("# found by bisection\n^head/MatMul$\n\n  softmax \n")
    monkeypatch.setenv("HOME", str(tmp_path))
    config = AmpConfig.from_env({"TF_AMP_EXCLUDE": "^first @~/exclude.txt"})
    assert config.exclude == ("^first", "^head/MatMul$", "softmax")


def test_a_user_without_a_home_keeps_nothing_and_is_told_once(monkeypatch, caplog):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(pathlib.Path, "home", no_home)
    amp_config._warn_of_no_home.cache_clear()
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert [AmpConfig.from_env({}).cache_dir for _ in range(3)] == [None] * 3
    (record,) = caplog.records
    assert "no home folder" in record.getMessage()
    assert "TF_AMP_CACHE" in record.getMessage()
    named = AmpConfig.from_env({"XDG_CACHE_HOME": "/cache"})
    assert named.cache_dir == pathlib.Path("/cache/tf-amp")


def paths_in(config):
    paths = (config.device_profile, config.log_dir, config.cache_dir, config.ranges)
    return [str(path) for path in paths]


@pytest.mark.parametrize("text", ["here.json", "below/here", "../here", "./here"])
def test_a_relative_path_is_of_the_folder_that_it_was_read_in(
    tmp_path, monkeypatch, text
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    config = AmpConfig.from_env(dict.fromkeys(PLACES, text))
    assert paths_in(config) == [str(tmp_path / text)] * 4
    config = AmpConfig.from_env(dict.fromkeys(PLACES, f"~/{text}"))
    assert paths_in(config) == [f"/home/someone/{pathlib.Path(text)}"] * 4
    for name in DeviceProfile.names():
        environ = {"TF_AMP_DEVICE_PROFILE": name}
        assert AmpConfig.from_env(environ).device_profile == name


def test_a_command_tells_whole_paths_to_the_script_and_its_children(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(autostart, "is_installed", lambda: True)
    monkeypatch.chdir(tmp_path)
    said = dict.fromkeys(PLACES, "here.json") | {
        LOG: "elsewhere",
        SETTINGS["ranges"].variable: " ",
    }
    for name in (SWITCH, REWRITE_SWITCH, *PLACES):
        monkeypatch.setenv(name, said.get(name, ""))
    running_scripts.switch_on({LOG: "here.json"})
    told = [os.environ[name] for name in PLACES]
    assert told == [*[str(tmp_path / "here.json")] * 3, " "]


def test_programs_and_scripts_may_change_to_another_folder(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "leaves.py").write_text("import os; os.chdir('/')")
    lines = output_of(
        f"""
        import os, pathlib
        from grappler_pass.costs import DeviceProfile
        from tf_amp.tools import running_scripts

        os.chdir({str(tmp_path)!r})
        running_scripts.run_limited("leaves.py", [], None)
        print(os.getcwd())
        os.remove("leaves.py")
        DeviceProfile.load("cpu-generic").save(pathlib.Path("mine.json"))
        tf_amp.enable(opt_level="O2", device_profile="mine.json", log_dir="graphs")
        os.chdir("elsewhere")
        print(dtype_of(product()), os.listdir(), sorted(os.listdir("..")))
        """
    )
    assert lines == [str(tmp_path), "bfloat16 [] ['elsewhere', 'graphs', 'mine.json']"]
