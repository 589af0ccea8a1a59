"""The exit codes of `tf-amp`: a code means the same in every command.

`run` alone ends as its script does. What a code comes to in a command stands in its
`EXITS`, which its help and docs/exit_codes.md show.
"""

from __future__ import annotations

from collections.abc import Mapping

DONE, FAILED, REFUSED, NOTHING = 0, 1, 2, 3
# What a shell makes of a program that Ctrl-C has ended.
INTERRUPTED = 130

MEANINGS: Mapping[int, str] = {
    DONE: "done",
    FAILED: "something failed: the script, or what was to be found out",
    REFUSED: "a wrong command line, setting or file, so that nothing was done",
    NOTHING: "there was nothing to look at",
    INTERRUPTED: "interrupted",
}
# Alike in all commands.
_COMMON = {
    REFUSED: "a wrong command line, setting or file",
    INTERRUPTED: MEANINGS[INTERRUPTED],
}


def sentence(own: Mapping[int, str] = MEANINGS) -> str:
    """Return what codes mean in a sentence; by default those of no command."""
    meanings = sorted({**_COMMON, **own}.items())
    return f"Exit codes: {'; '.join(f'{code} {what}' for code, what in meanings)}."
