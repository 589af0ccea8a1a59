"""Run one program in several processes at once, as a job of TensorFlow's."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import socket
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence

from tests.forking import Child
from tests.processes import Outcome

# Ample on a busy machine; each job takes some 15 seconds otherwise.
TIMEOUT_SECONDS = 180.0

# Who ends while others wait for the last of what was exchanged ends them, too.
_END = """
import pathlib, time
folder, latest = pathlib.Path({folder!r}), time.monotonic() + 5
(folder / "{name}-{index}.done").touch()
while len([*folder.glob("{name}-*.done")]) < {count} and time.monotonic() < latest:
    time.sleep(0.05)
"""

Task = tuple[str, int]


class Job:
    """The processes of a job; each knows its place from TF_CONFIG."""

    def __init__(
        self,
        program: str,
        counts: Mapping[str, int],
        env: Mapping[str, str],
        env_of: Mapping[Task, Mapping[str, str]],
    ) -> None:
        """Start them all.

        Args:
          program: what every process runs.
          counts: of tasks, by name of the job.
          env: further variables, for all.
          env_of: variables of one task.
        """
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tf-amp-job-"))
        tasks = [(name, i) for name, count in counts.items() for i in range(count)]
        ports = iter(free_ports(len(tasks)))
        cluster = {
            name: [f"localhost:{next(ports)}" for _ in range(count)]
            for name, count in counts.items()
        }
        self._processes = {
            task: self._start(program, task, cluster, {**env, **env_of.get(task, {})})
            for task in tasks
        }

    def _start(
        self,
        program: str,
        task: Task,
        cluster: Mapping[str, Sequence[str]],
        env: Mapping[str, str],
    ) -> Child:
        name, index = task
        count = len(cluster[name])
        end = _END.format(folder=str(self.folder), name=name, index=index, count=count)
        place = {"cluster": cluster, "task": {"type": name, "index": index}}
        variables = {
            "TF_NUM_INTRAOP_THREADS": "1",
            **env,
            "TF_CONFIG": json.dumps(place),
        }
        out, err = (self._file(task, suffix) for suffix in ("out", "err"))
        return Child(f"{textwrap.dedent(program)}\n{end}", variables, out, err)

    def _file(self, task: Task, suffix: str) -> pathlib.Path:
        return self.folder / f"{task[0]}-{task[1]}.{suffix}"

    def kill(self, task: Task) -> None:
        """End one process as `kill -9` does."""
        self._processes[task].kill()

    def wait(
        self, serving: Sequence[str] = (), timeout: float = TIMEOUT_SECONDS
    ) -> dict[Task, Outcome]:
        """Wait for all but those that only serve, and end these; return what is left.

        Args:
          serving: names of jobs.
          timeout: in seconds.
        """
        end = time.monotonic() + timeout
        working = {t: p for t, p in self._processes.items() if t[0] not in serving}
        for task, process in working.items():
            while process.poll() is None:
                if time.monotonic() > end:
                    self.stop()
                    raise AssertionError(f"{task} hangs\n{self.report()}")
                time.sleep(0.05)
        self.stop()
        return {task: self.outcome(task) for task in self._processes}

    def outcome(self, task: Task) -> Outcome:
        """Return what a process has left so far."""
        code = self._processes[task].poll()
        out, err = (self._file(task, s).read_text() for s in ("out", "err"))
        return Outcome(-1 if code is None else code, out, err)

    def report(self) -> str:
        """Return all that was printed."""
        found = ((task, self.outcome(task)) for task in self._processes)
        return "\n".join(f"{t}: {o.code}\n{o.out}\n{o.err[-3000:]}" for t, o in found)

    def stop(self) -> None:
        """Kill what still runs."""
        for process in self._processes.values():
            process.kill()
            process.wait()


@contextlib.contextmanager
def job(
    program: str,
    counts: Mapping[str, int],
    env: Mapping[str, str],
    env_of: Mapping[Task, Mapping[str, str]] | None = None,
) -> Iterator[Job]:
    """Start a job, see `Job`, and leave nothing of it running."""
    started = Job(program, counts, env, env_of or {})
    try:
        yield started
    finally:
        started.stop()
        shutil.rmtree(started.folder, ignore_errors=True)


def run_job(
    program: str,
    counts: Mapping[str, int],
    env: Mapping[str, str],
    serving: Sequence[str] = (),
) -> dict[Task, list[str]]:
    """Run a job to its end; return what each process has printed.

    Args:
      program: what every process runs.
      counts: of tasks, by name of the job.
      env: further variables, for all.
      serving: names of the jobs that are ended when the others are done.
    """
    with job(program, counts, env) as started:
        outcomes = started.wait(serving)
        working = {t: o for t, o in outcomes.items() if t[0] not in serving}
        assert not any(o.code for o in working.values()), started.report()
        return {task: outcome.out.splitlines() for task, outcome in outcomes.items()}


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nothing listens at."""
    with contextlib.ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in found]
