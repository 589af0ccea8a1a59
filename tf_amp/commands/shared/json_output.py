"""JSON of a command that runs a script: on standard output, and nothing else there."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TextIO

_STDOUT = 1


def stream_for(options: argparse.Namespace) -> TextIO:
    """Return where a command's result goes, before anything of a script runs.

    With `--json` and a script, standard output becomes standard error from now on: for
    Python, C and child processes, and for what the script has done at its very end. The
    stream that is returned leads where standard output did.
    """
    if not options.json or options.model.is_dir():
        return sys.stdout
    try:
        kept, errors = os.dup(_STDOUT), sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        # One of them is closed, or something else than a descriptor.
        return sys.stdout
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(errors, _STDOUT)
    return open(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
