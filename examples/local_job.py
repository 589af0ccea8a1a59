"""Start a script several times on this machine, as the tasks of one job."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence


def is_task() -> bool:
    """Return whether this process has been started as a task of a job."""
    return "TF_CONFIG" in os.environ


def run(counts: Mapping[str, int], serving: Sequence[str] = ()) -> None:
    """Start this very script as each of the tasks, and exit as they do.

    Args:
      counts: of tasks, by name of the job.
      serving: names of jobs that are ended when all others are done.
    """
    ports = iter(free_ports(sum(counts.values())))
    cluster = {
        job: [f"localhost:{next(ports)}" for _ in range(count)]
        for job, count in counts.items()
    }
    tasks = [(job, index) for job, count in counts.items() for index in range(count)]
    processes = {(job, index): start(cluster, job, index) for job, index in tasks}
    try:
        codes = [p.wait() for (job, _), p in processes.items() if job not in serving]
    finally:
        for process in processes.values():
            process.kill()
    sys.exit(max(map(abs, codes)))


def start(
    cluster: Mapping[str, Sequence[str]], job: str, index: int
) -> subprocess.Popen[bytes]:
    """Start one task; it finds its place in a variable that TensorFlow reads."""
    place = {"cluster": cluster, "task": {"type": job, "index": index}}
    variables = {**os.environ, "TF_CONFIG": json.dumps(place)}
    return subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=variables)


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nothing listens at."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
