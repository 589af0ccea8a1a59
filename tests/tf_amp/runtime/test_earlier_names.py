"""What earlier versions called otherwise, or took by position, works with a warning."""

import builtins
import inspect
import re
from itertools import chain

import pytest
import tensorflow as tf

import tf_amp
from keras_callbacks import AutoMixedPrecision
from tf_amp.tracing.in_force import current_config

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def test_errors_have_their_earlier_names():
    with pytest.warns(DeprecationWarning, match="RewriteFailed is RewriteError now"):
        assert tf_amp.RewriteFailed is tf_amp.RewriteError
    with pytest.warns(DeprecationWarning):
        assert tf_amp.errors.DataUnfit is tf_amp.UnfitDataError
    with pytest.raises(AttributeError, match="'tf_amp' has no attribute 'Rewriter'"):
        _ = tf_amp.Rewriter


def test_all_errors_have_one_base_and_end_in_error():
    found = [getattr(tf_amp, name) for name in tf_amp.__all__]
    errors = [e for e in found if isinstance(e, type) and issubclass(e, Exception)]
    assert len(errors) == 15
    for error in errors:
        assert issubclass(error, tf_amp.AmpError)
        assert error.__name__.endswith("Error")


def test_errors_that_public_docstrings_name_are_public():
    public = [getattr(tf_amp, name) for name in tf_amp.__all__]
    methods = [vars(each).values() for each in public if isinstance(each, type)]
    texts = [inspect.getdoc(each) or "" for each in chain(public, *methods)]
    named = set(re.findall(r"^\s*(\w+Error)\b.*:", "\n".join(texts), re.MULTILINE))
    ours = {name for name in named if not hasattr(builtins, name)}
    assert len(ours) >= 10
    assert ours <= {*tf_amp.__all__}


def test_a_scope_takes_its_earlier_order():
    with pytest.warns(DeprecationWarning, match="loss_scale=8, dtype='float16'"):
        scope = tf_amp.mixed_precision_scope(8, "float16", "O2")
    with scope:
        config = current_config()
    assert (config.dtype, config.opt_level) == ("float16", "O2")
    assert config.loss_scale.value == 8.0


def test_a_loss_scale_alone_is_known_as_one(recwarn):
    with tf_amp.mixed_precision_scope("dynamic:initial=4"):
        assert current_config().loss_scale.initial == 4.0
    assert len(recwarn) == 1
    with tf_amp.mixed_precision_scope("bfloat16", loss_scale=2):
        assert current_config().dtype == "bfloat16"
    assert len(recwarn) == 1


def test_enabling_and_callbacks_take_their_earlier_order():
    with pytest.warns(DeprecationWarning, match="opt_level='O2'"):
        tf_amp.enable("bfloat16", "O2")
    assert current_config().opt_level == "O2"
    with pytest.warns(DeprecationWarning):
        AutoMixedPrecision("dynamic", "float16")


def test_what_is_given_twice_or_too_much_is_refused():
    with pytest.raises(TypeError, match="given twice: dtype"):
        tf_amp.mixed_precision_scope(8, "float16", dtype="float16")
    with pytest.raises(TypeError, match="at most 5"):
        tf_amp.mixed_precision_scope(8, "float16", "O2", (), True, 1)


def test_a_device_profile_has_its_earlier_name():
    spec = tf.TensorSpec([64, 64])
    now = tf_amp.audit(tf.matmul, spec, spec, device_profile="v100")
    for task in (tf_amp.audit, tf_amp.optimize):
        with pytest.warns(DeprecationWarning, match="device= is device_profile= now"):
            earlier = task(tf.matmul, spec, spec, device="v100")
        if task is tf_amp.audit:
            assert earlier.plan.decisions == now.plan.decisions
