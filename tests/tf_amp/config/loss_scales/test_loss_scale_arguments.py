"""What the arguments of loss scales, and words for them, may be."""

import fractions
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import stepper
from tests.tf_amp.config.loss_scales.test_loss_scale import Doubling
from tf_amp import (
    ConfigError,
    DynamicLossScale,
    LossScale,
    NoOpLossScale,
    StaticLossScale,
    StatisticalLossScale,
    enable,
    mixed_precision_scope,
)
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.devices import loss_scale_for
from tf_amp.config.loss_scales.words import loss_scale_from_words, words_from_loss_scale
from tf_amp.runtime.switch import current_config
from tf_amp.training.scale_state import find_state

SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
REWRITE = f"{SWITCH}_GRAPH_REWRITE"
SCALING = f"{SWITCH}_LOSS_SCALING"


BAD_ARGUMENTS = {
    DynamicLossScale: [
        ({"initial": 0.0}, "initial=0.0"),
        ({"initial": -2.0}, "initial=-2.0"),
        ({"initial": math.nan}, "initial=nan"),
        ({"initial": 1000.0}, "not a power of two.*1024.0"),
        ({"minimum": 4.0, "maximum": 2.0}, "minimum=4.0 is above maximum=2.0"),
        ({"initial": 2.0**30}, "outside of"),
        ({"maximum": math.inf}, "maximum=inf"),
        ({"initial": "8"}, "initial='8'; it must be a number"),
        ({"maximum": 2.0**127}, r"from 2\*\*-126 to 2\*\*126"),
        ({"minimum": 2.0**-127}, r"from 2\*\*-126 to 2\*\*126"),
        ({"growth_factor": 1.0}, "growth_factor=1.0; it must be above 1"),
        ({"growth_factor": 0}, "growth_factor=0; it must be above 1"),
        ({"growth_factor": 1.2}, "not a power of two.*nearest is 2.0"),
        ({"growth_factor": math.inf}, "growth_factor=inf; allowed are"),
        ({"backoff_factor": 1.0}, "backoff_factor=1.0; it must lie between 0 and 1"),
        ({"backoff_factor": 0}, "backoff_factor=0; it must lie between 0 and 1"),
        ({"backoff_factor": -1}, "backoff_factor=-1; it must lie between 0 and 1"),
        ({"backoff_factor": 1.5}, "backoff_factor=1.5; it must lie between 0 and 1"),
        ({"backoff_factor": 0.9}, "not a power of two.*nearest is 0.5"),
        ({"backoff_factor": math.nan}, "=nan; it must lie between 0 and 1"),
        ({"growth_interval": 0}, "growth_interval=0; allowed are ints from 1"),
        ({"growth_interval": 2**63}, "allowed are ints from 1"),
        ({"hysteresis": 1.5}, "hysteresis=1.5; allowed are ints"),
        ({"hysteresis": True}, "hysteresis=True"),
        ({"at_minimum": "stop"}, "at_minimum='stop'; allowed are warn, raise"),
    ],
    StaticLossScale: [
        ({"value": value}, "StaticLossScale: value=")
        for value in (0, -1.0, math.nan, math.inf, "big", True)
    ],
    StatisticalLossScale: [
        ({"decay": 1.0}, "decay=1.0; it must lie between 0 and 1"),
        ({"decay": "x"}, "decay='x'; it must be a number"),
        ({"decay": math.inf}, "decay=inf; it must lie between"),
        ({"deviations": -1.0}, "deviations=-1.0; it must be 0 or more"),
        ({"deviations": "x"}, "deviations='x'; it must be 0 or more"),
        ({"initial": 3.0}, "not a power of two"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "arguments", "complaint"),
    [(kind, *case) for kind, cases in BAD_ARGUMENTS.items() for case in cases],
)
def test_a_bad_argument_is_quoted(kind, arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        kind(**arguments)


@pytest.mark.parametrize(
    "number",
    [np.float16, np.float32, np.int64, np.uint8, fractions.Fraction, int, float],
)
def test_numbers_of_any_class_are_kept_as_pythons_own(number):
    dynamic = DynamicLossScale(
        initial=number(8), growth_factor=number(2), backoff_factor=np.float16(0.5)
    )
    statistical = StatisticalLossScale(initial=number(8), decay=np.float32(0.5))
    static = mixed_precision_scope(loss_scale=number(8))
    assert static is not None
    words = [words_from_loss_scale(spec) for spec in (dynamic, statistical)]
    assert words == ["dynamic:initial=8.0", "statistical:initial=8.0,decay=0.5"]
    assert loss_scale_from_words(number(8)) is loss_scale_from_words("8")
    assert words_from_loss_scale(loss_scale_from_words(number(8))) == "8.0"


@pytest.mark.parametrize("number", [np.int64, np.int8, int])
def test_counts_of_any_class_are_kept_as_pythons_own(number):
    spec = DynamicLossScale(growth_interval=number(5), hysteresis=number(2))
    words = words_from_loss_scale(spec)
    assert words == "dynamic:growth_interval=5,hysteresis=2"


@pytest.mark.parametrize(
    ("words", "canonical", "kind"),
    [
        ("none", "none", NoOpLossScale),
        ("Dynamic", "dynamic", DynamicLossScale),
        ("statistical:decay=0.5", "statistical:decay=0.5", StatisticalLossScale),
        ("1024", "1024.0", StaticLossScale),
        (
            "dynamic:hysteresis=2, initial=1024",
            "dynamic:initial=1024.0,hysteresis=2",
            DynamicLossScale,
        ),
        ("dynamic:initial=32768", "dynamic", DynamicLossScale),
    ],
)
def test_words_stand_for_one_loss_scale(words, canonical, kind):
    loss_scale = loss_scale_from_words(words)
    assert type(loss_scale) is kind
    assert words_from_loss_scale(loss_scale) == canonical
    assert loss_scale_from_words(canonical) is loss_scale


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("big", "received 'big'; allowed are a number"),
        ("dynamic:start=1", "'start=1'.*initial=<float>"),
        ("dynamic:hysteresis=x", "hysteresis=x"),
        ("dynamic:initial=3", "not a power of two"),
        ("dynamic:initial=4,initial=8", "'initial' is given more than once"),
        ("-4", "value=-4.0"),
        ("1024:growth_interval=5", "received '1024:growth_interval=5'; allowed"),
        pytest.param(10**400, "value=1000", id="beyond any float"),
        (None, "received None"),
        (DynamicLossScale, "received <class"),
    ],
)
def test_unknown_words_are_quoted(words, complaint):
    with pytest.raises(ConfigError, match=complaint):
        loss_scale_from_words(words)


def test_a_loss_scale_of_ones_own_has_no_words():
    class Mine(LossScale):
        pass

    assert isinstance(loss_scale_from_words(Mine()), Mine)
    for own in (Mine(), Doubling(4.0)):
        with pytest.raises(ConfigError, match="cannot be written"):
            AmpConfig(loss_scale=own).to_env()


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TF_AMP_DTYPE": "float16"}, "dynamic"),
        ({"TF_AMP_DTYPE": "bfloat16"}, "none"),
        ({"TF_AMP_DTYPE": "bfloat16", "TF_AMP_LOSS_SCALE": "64"}, "64.0"),
        ({"TF_AMP_DTYPE": "bfloat16", SCALING: "1"}, "dynamic"),
        ({"TF_AMP_DTYPE": "float16", SCALING: "0"}, "none"),
        ({"TF_AMP_LOSS_SCALE": "64", SCALING: "1"}, "64.0"),
        ({"TF_AMP_DTYPE": "float16", REWRITE: "1"}, "none"),
        ({"TF_AMP_DTYPE": "float16", REWRITE: "1", SCALING: "1"}, "dynamic"),
        ({"TF_AMP_DTYPE": "float16", REWRITE: "1", SWITCH: "1"}, "dynamic"),
        ({"TF_AMP_LOSS_SCALE": "64", REWRITE: "1"}, "64.0"),
        ({SWITCH: "float16", REWRITE: "1"}, "dynamic"),
        ({"TF_AMP_DTYPE": "float16", "TF_AMP_OPT_LEVEL": "O0"}, "none"),
        ({"TF_AMP_DEVICE_PROFILE": "v100"}, "dynamic"),
        ({"TF_AMP_DEVICE_PROFILE": "h200"}, "none"),
    ],
)
def test_the_type_decides_unless_somebody_has(environ, words):
    config = AmpConfig.from_env(environ)
    assert words_from_loss_scale(loss_scale_for(config)) == words
    assert words_from_loss_scale(loss_scale_for(None)) == "none"


@pytest.mark.parametrize("scale", [np.float32(0.5), np.int64(8), 1024])
def test_a_state_may_begin_with_numbers_of_any_type(scale):
    class Numbered(LossScale):
        def initial_state(self):
            return {"scale": scale, "steps": np.int32(3)}

    spec = Numbered()
    assert float(stepper(spec)(tf.constant(1.0))) == 2.0
    names = find_state(spec).names
    assert "scale" in names["floats"] and "steps" in names["counters"]


def test_what_python_names_goes_before_the_environment(
    monkeypatch, disabled_afterwards
):
    monkeypatch.setenv(SCALING, "0")
    enable("bfloat16", loss_scale=64)
    assert words_from_loss_scale(loss_scale_for(current_config())) == "64.0"
