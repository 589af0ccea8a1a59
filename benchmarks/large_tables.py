"""Add to a shipped profile what chains of ops on small inputs cannot show.

``python -m benchmarks.large_tables NAME --rounds 40`` measures on this CPU what reading
and updating rows at random takes in a table that the cache cannot hold, and what
starting a function takes, and writes both into the profile NAME.

To be run on an idle machine, after ``benchmarks.ship_profile``, which drops both.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tensorflow as tf

from grappler_pass.costs import DeviceProfile
from grappler_pass.costs.op_classes import COLD
from grappler_pass.costs.times import monotone
from tf_amp.calibrate.profile import call_seconds
from tf_amp.calibrate.readings import CPU, chained, timing_run
from tf_amp.run.graph_run import GraphRun, elapsed

_FOLDER = Path("grappler_pass/costs/profiles")
_AXES = {"rows": [256, 4096], "columns": [16, 64, 256]}
_TABLE_ELEMENTS = 1 << 26
# Writing to so many numbers drives all else out of the cache.
_CACHE_ELEMENTS = 1 << 24
# So many ops in a row, each with rows of its own.
_LENGTH = 2


# Operations: so many runs in a row, and their start without them.
Chain = tuple[Any, Any]


def chain_of_gathers(run: GraphRun, table: Any, sets: Sequence[Sequence[Any]]) -> Chain:
    """Return look-ups of rows."""
    return chained(
        run,
        lambda inputs: tf.raw_ops.GatherV2(params=table, indices=inputs[0], axis=0).op,
        sets,
        _LENGTH,
    )


def chain_of_scatters(
    run: GraphRun, table: Any, sets: Sequence[Sequence[Any]]
) -> Chain:
    """Return updates of rows in place."""
    handle = table.op.inputs[0]
    return chained(
        run,
        lambda inputs: tf.raw_ops.ResourceScatterSub(
            resource=handle, indices=inputs[0], updates=inputs[1]
        ),
        sets,
        _LENGTH,
    )


# Class -> how it is measured, and at which dtypes: variables stay float32.
_CASES: Mapping[str, tuple[Callable[..., Chain], tuple[str, ...]]] = {
    f"gather{COLD}": (chain_of_gathers, ("float32", "bfloat16", "float16")),
    f"segment{COLD}": (chain_of_scatters, ("float32",)),
}


def measured(
    make_chain: Callable[..., Chain], dtype: str, rounds: int
) -> Iterator[float]:
    """Yield the median seconds of one op at each point, the last axis fastest."""
    kind = tf.as_dtype(dtype).as_numpy_dtype
    random = np.random.default_rng(7)
    for rows, columns in product(*_AXES.values()):
        count = _TABLE_ELEMENTS // columns
        run = timing_run()
        table = run.hold(np.full((count, columns), 0.7, kind), CPU)
        updates = np.full((rows, columns), 0.7, kind)
        with run.graph.as_default(), run.graph.device(CPU):
            sets = [
                [tf.constant(random.integers(count, size=rows)), tf.constant(updates)]
                for _ in range(_LENGTH)
            ]
        chain, start = make_chain(run, table, sets)
        with run:
            calls = run.callable(chain), run.callable(start)
            ops, nothing = ([_elapsed_cold(c) for _ in range(rounds)] for c in calls)
        yield (median(ops) - median(nothing)) / _LENGTH


def _elapsed_cold(run: Callable[[], object]) -> float:
    np.zeros(_CACHE_ELEMENTS).fill(1.0)
    return elapsed(run)


def main() -> None:
    """Measure, and write the profile anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=_FOLDER)
    options = parser.parse_args()
    data = dict(DeviceProfile.load(options.name).data)
    data["call_seconds"] = float(f"{call_seconds():.2g}")
    print(f"a call: {data['call_seconds']} s")
    data["classes"] = dict(data["classes"])
    lengths = [len(sizes) for sizes in _AXES.values()]
    for op_class, (make_chain, dtypes) in _CASES.items():
        seconds = {
            dtype: [
                float(f"{each:.3g}")
                for each in monotone(
                    lengths, list(measured(make_chain, dtype, options.rounds))
                )
            ]
            for dtype in dtypes
        }
        print(op_class, seconds, flush=True)
        data["classes"][op_class] = {"axes": _AXES, "seconds": seconds}
    DeviceProfile.from_json(data).save(options.out / f"{options.name}.json")


if __name__ == "__main__":
    main()
