"""Write the snapshots anew, or with `--check` say which have changed.

python -m tests.snapshots [--check] [NAME ...]
"""

from __future__ import annotations

import argparse
import difflib
import sys

from tests.snapshots.lines import SNAPSHOTS, Snapshot
from tests.snapshots.printed import path_of, text_of


def main() -> int:
    """Write or compare those that are named, by default all; return the exit code."""
    names = [each.name for each in SNAPSHOTS]
    parser = argparse.ArgumentParser(prog="python -m tests.snapshots")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--check", action="store_true", help="compare, and write none")
    options = parser.parse_args()
    if unknown := set(options.names).difference(names):
        parser.error(f"no snapshot {min(unknown)!r}; there are {', '.join(names)}")
    chosen = [each for each in SNAPSHOTS if each.name in (options.names or names)]
    for each in chosen:
        if each.why_not:
            print(f"{each.name}: left out, since {each.why_not}", file=sys.stderr)
    chosen = [each for each in chosen if not each.why_not]
    if options.check:
        return max([_compare(each) for each in chosen])
    for each in chosen:
        path_of(each).write_text(text_of(each))
    return 0


def _compare(snapshot: Snapshot) -> int:
    path = path_of(snapshot)
    kept = path.read_text() if path.exists() else ""
    lines = [text.splitlines(keepends=True) for text in (kept, text_of(snapshot))]
    changes = list(difflib.unified_diff(*lines, str(path), "printed now"))
    sys.stdout.writelines(changes)
    return int(bool(changes))


if __name__ == "__main__":
    sys.exit(main())
