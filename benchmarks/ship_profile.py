"""Measure this CPU thoroughly and write a profile to ship with the package.

``python -m benchmarks.ship_profile NAME --rounds 2 --raw FILE`` keeps every
measurement in FILE; a later run adds to it, and the median of all runs counts. On a
machine with other work, several runs at different times are better than a long one.
With ``--classes`` the profile that is there gets these classes, and stays as it is.
Tables beyond the cache are measured by ``benchmarks.large_tables``, to be run next.
"""

import argparse
import datetime
import json
import math
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from grappler_pass.costs import DeviceProfile
from tf_amp.calibrate.cases import Sizes, all_cases, points_of
from tf_amp.calibrate.profile import call_seconds, classes_from, roofline_from
from tf_amp.calibrate.readings import Rounds, Turns, measure_into, medians_of
from tf_amp.config.devices import cpu_key

_FOLDER = Path("grappler_pass/costs/profiles")
# How densely a shipped profile's axes are laid out.
FINE = Sizes(
    elements=tuple(1 << power for power in (6, 10, 12, 14, 16, 18, 19, 20, 21, 23)),
    matrix=(4, 16, 64, 128, 512, 2048),
    batch=(4, 64),
    batched_matrix=(16, 64, 256),
    pixels=(64, 1024, 8192, 65536),
    channels=(16, 64, 256, 1024),
    rows=(8, 256, 2048, 16384, 131072),
    columns=(4, 64, 512, 4096),
)

# As in a profile's JSON.
Classes = dict[str, Any]


def read_raw(path: Path) -> Rounds:
    """Return the measurements of earlier runs."""
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text())
    return {(op_class, dtype, tuple(at)): taken for op_class, dtype, at, taken in rows}


def write_raw(path: Path, measured: Rounds) -> None:
    """Keep all measurements so far."""
    path.write_text(json.dumps([[*key, taken] for key, taken in measured.items()]))


def main() -> None:
    """Measure in turn every class, merge with earlier runs, write the profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="at most")
    parser.add_argument("--turn", type=float, default=0.1, help="seconds per point")
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--dtypes", default="float32,bfloat16,float16")
    parser.add_argument("--classes", default="", help="prefixes, all by default")
    parser.add_argument("--description", default="measured")
    options = parser.parse_args()
    cases = all_cases(FINE)
    prefixes = tuple(filter(None, options.classes.split(","))) or ("",)
    chosen = [case for case in cases if case.op_class.startswith(prefixes)]
    dtypes = options.dtypes.split(",")
    turns = Turns(options.turn, least=4)
    measured = read_raw(options.raw)
    start = time.perf_counter()
    for case in chosen * options.rounds:
        elapsed = time.perf_counter() - start
        if elapsed >= options.seconds:
            break
        print(f"{elapsed:7.1f} s  {case.op_class}", flush=True)
        for point in points_of(case):
            measure_into(measured, case, point, dtypes, turns)
        write_raw(options.raw, measured)
    classes = classes_from(chosen, medians_of(measured))
    data = (
        _extended(DeviceProfile.load(options.name), classes)
        if options.classes
        else _profile(options.name, options.description, classes)
    )
    DeviceProfile.from_json(data).save(_FOLDER / f"{options.name}.json")


def _profile(name: str, description: str, classes: Classes) -> dict[str, Any]:
    """Return the whole of a profile."""
    key = cpu_key()
    return {
        "format": 1,
        "name": name,
        "kind": "cpu",
        "description": description,
        "provenance": {
            "date": datetime.date.today().isoformat(),
            "device": f"{key.model}, {' '.join(sorted(key.flags))}, "
            f"{key.threads} threads, oneDNN {'on' if key.onednn else 'off'}",
            "how": "python -m benchmarks.ship_profile: median of several rounds, "
            "interleaved over dtypes",
            "tensorflow": tf.__version__,
        },
        "device": None,
        "call_seconds": call_seconds(),
        "roofline": roofline_from(classes),
        "classes": classes,
    }


def _extended(profile: DeviceProfile, classes: Classes) -> dict[str, Any]:
    """Return a profile with classes in place of its own, or beside them."""
    today = datetime.date.today().isoformat()
    names = ", ".join(classes)
    added = f"python -m benchmarks.ship_profile --classes, {today}: {names}"
    return {
        **profile.data,
        "provenance": {**profile.data["provenance"], "added": added},
        "classes": {**profile.data["classes"], **classes},
    }


if __name__ == "__main__":
    main()
