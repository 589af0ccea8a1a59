"""Write the snapshots anew, or with `--check` say which have changed.

python -m tests.snapshots [--check] [NAME ...]
"""

from __future__ import annotations

import argparse
import difflib
import sys

from tests.snapshots.printed import NAMES, path_of, text_of, why_not


def main() -> int:
    """Write or compare those that are named, by default all; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.snapshots")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--check", action="store_true", help="compare, and write none")
    options = parser.parse_args()
    if unknown := set(options.names).difference(NAMES):
        parser.error(f"no snapshot {min(unknown)!r}; there are {', '.join(NAMES)}")
    differs = False
    for name in options.names or NAMES:
        if reason := why_not(name):
            print(f"{name}: left out, since {reason}", file=sys.stderr)
        elif options.check:
            differs |= _compare(name)
        else:
            path_of(name).write_text(text_of(name))
    return int(differs)


def _compare(name: str) -> bool:
    path = path_of(name)
    texts = path.read_text(), text_of(name)
    lines = [text.splitlines(keepends=True) for text in texts]
    changes = list(difflib.unified_diff(*lines, str(path), "printed now"))
    sys.stdout.writelines(changes)
    return bool(changes)


if __name__ == "__main__":
    sys.exit(main())
