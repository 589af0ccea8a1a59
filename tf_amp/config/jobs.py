"""Which jobs this process is a part of: those it serves, and the one it directs.

A server computes what another process has traced. That process says by which
settings, on the operations; a server uses only what was sent within its own job, so
that nothing found in a file is taken for it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tf_amp._tensorflow_private import workers as private

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


def is_served(key: str) -> bool:
    """Return whether a job is one that this process computes for."""
    return key in _served


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
