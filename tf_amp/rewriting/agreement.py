"""What workers that train in step have in common: settings, and the chief's plans.

A worker without loss scaling takes no part in the others' votes; then all wait for
ever, or fail with an error of TensorFlow's that does not say why. So each says by what
settings it runs, before it first votes, and looks whether the chief runs by the same;
the chief looks whether everyone does.

Each worker has its own prices, those of its machine, so each might decide otherwise; a
mirrored step would then be as slow as the slowest of them, and its replicas would round
differently. The chief decides; the others wait for what it has decided for the same
graph. A plan in doubt is compared by all at the same calls, and they hear from the
chief how that ends. Where its plan does not come or does not fit, a worker decides by
itself, and says so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import time
from typing import TYPE_CHECKING

from absl import logging

from tf_amp.compare import call_sites
from tf_amp.compare.alternation import FEWEST_PAIRS
from tf_amp.config.amp_config import LOSS_SCALE, AmpConfig
from tf_amp.config.loss_scales.words import words_from_loss_scale
from tf_amp.config.workers import Peers, is_joint, peers
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code
from tf_amp.rewriting import host
from tf_amp.rewriting.host import PlanRecord

if TYPE_CHECKING:
    from grappler_pass.planning.draft import Draft, PlanMemory

_SETTINGS = "settings"
PATIENCE_SECONDS = 30.0
# Of the process, as its workers are: set once they have been asked.
_checked = threading.Event()
# What may differ from machine to machine.
_LOCAL = frozenset(
    f"TF_AMP_{name}" for name in ("CACHE", "LOG", "STRICT", "TUNE", "VERBOSE")
)


def check_once(config: AmpConfig, *, wait: bool = False) -> None:
    """Compare settings with the other workers, once in a process, in a thread."""
    others = None if _checked.is_set() else peers()
    if others is None:
        return
    _checked.set()
    arguments = (told_settings(config), others)
    thread = threading.Thread(target=compare, args=arguments, daemon=True)
    thread.start()
    if wait:
        thread.join()


def told_settings(config: AmpConfig) -> dict[str, str]:
    """Return what of the settings has to be the same everywhere."""
    variables = dataclasses.replace(config, loss_scale=None).to_env()
    if config.loss_scale is not None:
        try:
            variables[LOSS_SCALE] = words_from_loss_scale(config.loss_scale)
        except ConfigError:
            own = type(config.loss_scale).__name__
            variables[LOSS_SCALE] = f"the program's own {own}"
    return {name: variables[name] for name in sorted(variables.keys() - _LOCAL)}


def compare(
    own: dict[str, str], others: Peers, seconds: float = PATIENCE_SECONDS
) -> None:
    """Tell the other workers of the settings here, and warn where theirs differ."""
    others.tell(_SETTINGS, json.dumps(own))
    end = time.monotonic() + seconds
    for worker in others.others if others.is_chief else (others.chief,):
        theirs = others.ask(worker, _SETTINGS, max(0.0, end - time.monotonic()))
        if theirs is None:
            Code.WORKER_IS_SILENT.warn(
                "%s has not said within %.0f s that it runs in mixed precision. If "
                "it does not, all workers may wait for ever: set the same "
                "variables for each of them.",
                worker,
                seconds,
            )
            continue
        said = json.loads(theirs)
        names = sorted(n for n in own.keys() | said.keys() if own.get(n) != said.get(n))
        if names:
            differences = ", ".join(
                f"{n} is {said.get(n, 'not set')} on {worker} and "
                f"{own.get(n, 'not set')} on {others.own}"
                for n in names
            )
            text = Code.SETTINGS_DISAGREE.ends("Settings of the workers disagree: %s.")
            logging.warning(text, differences)


# The chief may be checking kernels meanwhile.
PLAN_SECONDS = 120.0
# It has said long ago how a comparison goes on.
_VERDICT_SECONDS = 10.0
_VERDICTS = {"go on": None, "16 bits": True, "float32": False}


@dataclasses.dataclass(frozen=True)
class SharedPlans:
    """Plans that the workers of a job have in common; a `PlanMemory`.

    Attributes:
      own: the plans of this worker.
      workers: who take part.
      seconds: that the chief is waited for.
    """

    own: PlanMemory
    workers: Peers
    seconds: float = PLAN_SECONDS

    def recall(self, draft: Draft) -> tuple[bool, ...] | None:
        """Return what the chief has decided for a graph that all workers run."""
        if self.workers.is_chief or not is_joint(draft.graph_def):
            return self.own.recall(draft)
        key, order = _key_and_order(draft)
        message = self.workers.ask(self.workers.chief, key, self.seconds)
        if message is None:
            Code.WORKER_IS_SILENT.warn(
                "%s has sent no plan for graph %r within %.0f s: %s decides by "
                "itself. Do they run the same program with the same settings?",
                self.workers.chief,
                draft.name,
                self.seconds,
                self.workers.own,
            )
            return self.own.recall(draft)
        plan = json.loads(message)
        is_open = plan.pop("open")
        low = host.low_from(PlanRecord(**plan), order)
        if is_open:
            verdict = functools.partial(self._verdict, key)
            call_sites.current().share(verdict, in_float32=not any(low))
        elif any(low):
            call_sites.current().accept()
        return low

    def keep(self, draft: Draft) -> None:
        """Remember how a graph came out, and tell the others if this is the chief.

        A worker says whether a plan made here differs from the chief's.
        """
        self.own.keep(draft)
        if not is_joint(draft.graph_def):
            return
        key, order = _key_and_order(draft)
        record, workers = host.record_of(draft, order), self.workers
        if workers.is_chief:
            message = {**dataclasses.asdict(record), "open": draft.is_open}
            # What was in doubt is sent again once it is decided.
            workers.tell(key, json.dumps(message), anew=not draft.is_open)
            if draft.is_open:
                call_sites.current().share(functools.partial(self._verdict, key))
        elif draft.recalled is None:
            told = workers.ask(workers.chief, key, 0.0)
            if told is not None and json.loads(told)["low"] != record.low:
                Code.PLANS_DISAGREE.warn(
                    "Plans disagree: graph %r is not rewritten on %s as on %s.",
                    record.graph,
                    workers.own,
                    workers.chief,
                )

    def _verdict(self, key: str, pairs: int, is_faster: bool | None) -> bool | None:
        """Return how the comparison of a plan ends for all, or None if it goes on."""
        workers, chief = self.workers, self.workers.chief
        # Not below the plan's key: to write a plan again deletes what is below its key,
        # which a slow worker may not have read yet.
        if workers.is_chief:
            word = next(word for word, each in _VERDICTS.items() if each is is_faster)
            workers.tell(f"{pairs}/{key}", word)
        if pairs == FEWEST_PAIRS:
            return None
        # By then all workers have run a pair more.
        heard = workers.ask(chief, f"{pairs - 1}/{key}", _VERDICT_SECONDS)
        if heard is None:
            Code.WORKER_IS_SILENT.warn(
                "%s has not heard of %s whether 16 bits are faster: they are kept.",
                workers.own,
                chief,
            )
            return True
        return _VERDICTS[heard]


def _key_and_order(draft: Draft) -> tuple[str, list[int]]:
    """Return what the plan of a graph is known by, and its slots in their order."""
    key, order = host.key_and_order(draft)
    return f"{key} late" if call_sites.current().is_late else key, order
