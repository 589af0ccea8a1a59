"""What a server takes another process' word for, and what not."""

import pathlib
from collections.abc import Iterator
from unittest import mock

import pytest
import tensorflow as tf

from tf_amp.config import scope_registry, workers
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.setting_values import edits_from_mapping
from tf_amp.rewriting.graph_settings import check_config
from tf_amp.tracing.stamps import Stamp

CONFIG = AmpConfig(
    enabled=True,
    dtype="float16",
    opt_level="O2",
    list_edits=edits_from_mapping({"add": {"deny": ["Tanh"]}}),
    exclude=("^head/", "norm"),
    tie=0.25,
    log_dir=pathlib.Path("/of/the/coordinator"),
)


@pytest.fixture
def key() -> Iterator[str]:
    """Return the key of a job that this process serves meanwhile."""
    server = tf.distribute.Server.create_local_server()
    workers.serve(server)
    yield workers.key_of(server.server_def.cluster)
    workers._served.clear()


def text_of(config: AmpConfig) -> str:
    """Return what a coordinator of a job stamps of settings, without the job's key."""
    settings_id = scope_registry.scope_from_config(config).id
    with mock.patch.object(workers, "directed_key", lambda: "key"):
        return workers.sent_settings(settings_id).removeprefix("key.")


def adopted(settings_id: str, key: str, text: str) -> AmpConfig | None:
    """Return what an id stands for, once a server has met it with its terms."""
    workers.adopt_settings([(settings_id, f"{key}.{text}")], check_config)
    scope = scope_registry.scope_of(settings_id)
    return scope.config if scope else None


def test_a_server_takes_over_what_bears_on_numbers(key: str) -> None:
    config = adopted("aaaaaa.1", key, text_of(CONFIG))

    assert config is not None
    for name in ("dtype", "opt_level", "list_edits", "exclude", "tie", "enabled"):
        assert getattr(config, name) == getattr(CONFIG, name)
    # Folders are those of the server's own machine, and it measures nothing.
    assert config.log_dir is None
    assert config.tune == "off"


@pytest.mark.parametrize("of", ["other", "none"])
def test_terms_of_another_job_are_not_taken(key: str, of: str) -> None:
    wrong = {"other": "0" * len(key), "none": ""}[of]
    assert adopted(f"bbbbbb.{of}", wrong, text_of(CONFIG)) is None


@pytest.mark.parametrize(
    "text", ["", "?", "e30", "WzFd", "eyJUUl9BTVBfRFRZUEUiOiAxfQ=="]
)
def test_damaged_terms_leave_a_graph_in_float32(key: str, text: str) -> None:
    config = adopted(f"cccccc.{text}", key, text)
    assert config is None or config.dtype is None


def test_terms_for_a_profile_that_is_not_there_leave_a_graph_in_float32(
    key: str,
) -> None:
    named = text_of(AmpConfig(enabled=True, device_profile="/no/such.json"))
    assert adopted("dddddd.1", key, named) is None


def test_nothing_is_told_where_no_server_computes() -> None:
    scope = scope_registry.scope_from_config(CONFIG)
    assert workers.sent_settings(scope.id) == ""
    assert workers.sent_settings("off") == ""


def test_a_stamp_with_terms_is_read_back_equal() -> None:
    stamp = Stamp("ffffff.1", "step", "7", "abcd1234.e30=")
    assert Stamp.from_bytes(stamp.attribute.s) == stamp
    plain = Stamp("ffffff.1", "step", "7")
    assert plain.attribute.s == b"ffffff.1:step:7"
    assert Stamp.from_bytes(plain.attribute.s) == plain


def test_a_job_has_one_key_whoever_directs_it() -> None:
    cluster = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    of_servers = tf.train.ClusterSpec(cluster).as_cluster_def()
    with_chief = tf.train.ClusterSpec({**cluster, "chief": ["d:1"]}).as_cluster_def()
    larger = {**cluster, "worker": ["a:1", "b:1", "e:1"]}
    assert workers.key_of(of_servers) == workers.key_of(with_chief)
    other = tf.train.ClusterSpec(larger).as_cluster_def()
    assert workers.key_of(of_servers) != workers.key_of(other)
