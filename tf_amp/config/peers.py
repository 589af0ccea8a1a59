"""The workers that train in step with this one, and what they tell each other.

They do so through TensorFlow's own coordination service, outside of any step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from grappler_pass.garbage import collection_allowed
from tf_amp._tensorflow_private import workers as private
from tf_amp.message_codes import Code

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

        The first value that is given holds, unless another one replaces it anew.
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
