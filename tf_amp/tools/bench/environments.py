"""The environment of a process that measures one method."""

from __future__ import annotations

from collections.abc import Mapping

from tf_amp.config.amp_config import BENCH_BATCH, CACHE, OWN_PREFIX, SWITCH_PREFIX
from tf_amp.config.list_edits import PREFIX
from tf_amp.tools.bench.job import Job, Run
from tf_amp.tools.bench.methods import is_ours

_PREFIXES = (OWN_PREFIX, SWITCH_PREFIX, PREFIX)
_ALWAYS = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def settings_of(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that are tf-amp's, in which methods differ, sorted."""
    return tuple(
        sorted(
            (name, value)
            for name, value in environ.items()
            if name.startswith(_PREFIXES) and name not in (CACHE, BENCH_BATCH)
        )
    )


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not tf-amp's."""
    return {n: v for n, v in environ.items() if not n.startswith(_PREFIXES)}


def environment_of(
    job: Job, run: Run, environ: Mapping[str, str], cache: str
) -> dict[str, str]:
    """Return the variables of a run: the user's, but only tf-amp gets tf-amp's.

    Those of the method itself are set in the process.

    Args:
      job: what is measured.
      run: one process of it.
      environ: of the user.
      cache: folder for the costs that tf-amp measures; the user's own if warm.
    """
    batch = {} if run.batch is None else {BENCH_BATCH: str(run.batch)}
    costs = environ.get(CACHE) if job.is_warm else cache
    return {
        **_ALWAYS,
        **without_settings(environ),
        **batch,
        **({CACHE: costs} if costs else {}),
        **(dict(job.settings) if is_ours(run.method) else {}),
    }
