"""The jobs that this process is a part of, and the workers that train in step with it.

A server computes what another process has traced. The id of settings means something in
one process only; so where a process has others compute, its stamps hold the settings as
well, under the key of the job:

    <key of the job>.<what differs from the defaults>

A server uses only what was sent within its own job, so that nothing found in a file is
taken for it. What concerns a machine and not the numbers, such as folders, each server
decides.

Workers that train in step tell each other something through TensorFlow's own
coordination service, outside of any step.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from grappler_pass.garbage import collection_allowed
from tf_amp._tensorflow_private import functions as private
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code

# Processes that direct others, and are not always listed among them.
_DIRECTING = frozenset({"chief", "coordinator", "evaluator", "localhost"})
_KEY_BYTES = 4

# Of the process: a server runs until it ends, whatever is switched off.
_served: set[str] = set()
_own_tasks: set[tuple[str, int]] = set()


def serve(server: Any) -> None:
    """Note that this process computes what others of the server's cluster trace."""
    server_def = server.server_def
    _served.add(key_of(server_def.cluster))
    _own_tasks.add((server_def.job_name, server_def.task_index))


def is_server() -> bool:
    """Return whether this process has started a server."""
    return bool(_served)


def is_own_task(job: str, task: int) -> bool:
    """Return whether a task is one whose server this process has started."""
    return (job, task) in _own_tasks


def directed_key() -> str:
    """Return the key of the job whose servers compute for this process, or ""."""
    cluster = private.connected_cluster()
    return "" if cluster is None else key_of(cluster)


def key_of(cluster: Any) -> str:
    """Return a digest of a ClusterDef: of the addresses of its servers."""
    places = sorted(
        f"{job.name}/{task}={address}"
        for job in cluster.job
        if job.name not in _DIRECTING
        for task, address in job.tasks.items()
    )
    text = "\n".join(places).encode()
    return hashlib.blake2b(text, digest_size=_KEY_BYTES).hexdigest()


_PREFIX = "tf_amp"
_TRAINING = ("chief", "worker")


class Peers(NamedTuple):
    """A worker among those that train together, all by names such as "worker 1".

    The chief is the one that decides.
    """

    own: str
    others: tuple[str, ...]
    chief: str

    @property
    def is_chief(self) -> bool:
        """Return whether this worker is the one that decides."""
        return self.own == self.chief

    def tell(self, what: str, value: str, *, anew: bool = False) -> None:
        """Tell the others something by a name; not being able to is logged.

        The first value that is given holds, unless another one replaces it anew. That
        removes what was told by names that begin with this one and "/".
        """
        import tensorflow as tf

        try:
            private.tell_workers(f"{_PREFIX}/{self.own}/{what}", value, anew=anew)
        except (tf.errors.OpError, AttributeError) as error:
            _say_unreachable(error)

    def ask(self, worker: str, what: str, seconds: float) -> str | None:
        """Return what a worker sends, waiting for it; None where it does not."""
        import tensorflow as tf

        try:
            with collection_allowed():
                return private.ask_workers(f"{_PREFIX}/{worker}/{what}", seconds)
        except (tf.errors.OpError, AttributeError) as error:
            _say_unreachable(error)
            return None


def peers() -> Peers | None:
    """Return the workers that this one trains in step with; None where there are none.

    As in a MultiWorkerMirroredStrategy: each has made a graph of its own.
    """
    server_def = private.collective_server()
    if server_def is None:
        return None
    names = [
        f"{job.name} {task}"
        for job in sorted(server_def.cluster.job, key=lambda job: str(job.name))
        if job.name in _TRAINING
        for task in sorted(job.tasks)
    ]
    own = f"{server_def.job_name} {server_def.task_index}"
    if own not in names or len(names) < 2:
        return None
    return Peers(own, tuple(name for name in names if name != own), names[0])


def is_joint(graph_def: Any) -> bool:
    """Return whether the workers run a graph together, and so all have it."""
    return any(node.op.startswith("Collective") for node in graph_def.node)


def _say_unreachable(error: Exception) -> None:
    text = str(error).partition("\n")[0]
    Code.WORKER_IS_SILENT.warn_once(
        "Workers do not hear of each other's plans: %s", text
    )


# A server is busy with what it is sent: it decides by the prices that it has.
_TUNE = "off"
# What a server takes from its own environment.
_LOCAL = ("cache_dir", "log_dir", "strict", "loss_scale")


def sent_settings(settings_id: str) -> str:
    """Return what is stamped beside an id of settings; "" where no server computes."""
    scope = scope_registry.scope_of(settings_id)
    key = directed_key() if scope is not None else ""
    if scope is None or not key:
        return ""
    default = AmpConfig(enabled=True)
    local = {name: getattr(default, name) for name in _LOCAL}
    variables = dataclasses.replace(scope.config, **local).to_env()
    given = dict(variables.items() - default.to_env().items())
    text = base64.urlsafe_b64encode(json.dumps(given, sort_keys=True).encode())
    return f"{key}.{text.decode()}"


def adopt_settings(
    sent: Iterable[tuple[str, str]], check: Callable[[AmpConfig], None]
) -> None:
    """Make the settings known that a process of the same job has stamped.

    Args:
      sent: ids of settings, with what `sent_settings` has returned.
      check: raises ConfigError for settings that cannot be used here.
    """
    for settings_id, text in sent:
        if scope_registry.scope_of(settings_id) is not None:
            continue
        key, _, text = text.partition(".")
        if key not in _served:
            Code.SERVED_IN_FLOAT32.warn_once(
                "A graph that this server computes stays float32: it was traced by a "
                "process that is no coordinator of its job."
            )
            continue
        try:
            given = json.loads(base64.urlsafe_b64decode(text))
            if not isinstance(given, dict):
                raise ConfigError(f"received {given!r} where settings should be.")
            config = AmpConfig.from_env({str(k): str(v) for k, v in given.items()})
            own = scope_registry.base_config()
            local = {name: getattr(own, name) for name in _LOCAL}
            config = dataclasses.replace(config, enabled=True, tune=_TUNE, **local)
            check(config)
        except (ConfigError, ValueError, binascii.Error) as error:
            Code.SERVED_IN_FLOAT32.warn_once(
                "Graphs that another process has this server compute stay float32: %s",
                error,
            )
            continue
        scope_registry.adopt_scope(settings_id, config)
