"""A setting that makes no sense is refused, whoever comes upon it first."""

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tf_amp.commands import cli
from tf_amp.config.setting_values import LIST_PREFIX
from tf_amp.errors import ConfigError

SPEC = tf.TensorSpec([8, 8])
WRONG = {
    "TF_AMP_DEVICE_PROFILE": ("v1000", "did you mean 'v100'?"),
    "TF_AMP_RANGES": ("/nowhere.json", "/nowhere.json"),
    f"{LIST_PREFIX}CLEARLIST_ADD": ("Rellu", "received 'Rellu'"),
}


@tf.function
def product(x):
    return x @ x


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A SavedModel and inputs for it."""
    folder = tmp_path_factory.mktemp("models")
    model = tf.Module()
    model.product = product
    signature = product.get_concrete_function(SPEC)
    tf.saved_model.save(model, str(folder / "model"), signatures=signature)
    np.savez(folder / "data.npz", x=np.ones((8, 8), np.float32))
    return folder


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize(
    "command",
    [
        "explain {}/model",
        "audit {}/model --device v100",
        "verify {}/model",
        "ranges {}/model --data {}/data.npz",
        "convert {}/model {}/converted",
    ],
)
def test_a_command_says_so_in_one_line_and_ends_with_2(
    command, name, folder, monkeypatch, capsys
):
    value, words = WRONG[name]
    monkeypatch.setenv(name, value)
    assert cli.main(command.replace("{}", str(folder)).split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("tf-amp: ") and words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: tf_amp.explain(product, SPEC),
        lambda: tf_amp.audit(product, SPEC, device_profile="v100"),
        lambda: tf_amp.verify(product, SPEC),
        lambda: tf_amp.ranges(product, [np.ones((8, 8), np.float32)]),
        lambda: tf_amp.optimize(product, SPEC),
    ],
    ids=["explain", "audit", "verify", "ranges", "optimize"],
)
@pytest.mark.parametrize("name", WRONG)
def test_a_function_raises_a_config_error(call, name, monkeypatch):
    value, words = WRONG[name]
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        call()
