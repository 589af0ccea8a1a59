"""The codes that messages end with, each a row of docs/troubleshooting.md.

A message has a code if its reader has something to do, or to look up. What is logged
for developers, or says all that there is to know, has none.
"""

from __future__ import annotations

import enum
import functools
import sys
from typing import Any


class Code(enum.Enum):
    """What a message is about."""

    # Lines about a job, on stderr.
    REWRITTEN = "AMP101"
    STAYS_FLOAT32 = "AMP102"
    TRACED_BEFORE = "AMP103"
    COMPARED = "AMP104"
    SUMMARY = "AMP105"
    WRONG_KERNEL = "AMP106"
    LOW_ALREADY = "AMP107"
    NOTHING_SEEN = "AMP108"
    OTHER_BACKEND = "AMP109"
    NOTHING_EXCLUDED = "AMP110"
    SLOWER = "AMP111"
    NO_SETTING = "AMP112"
    NEW_FOLDER = "AMP113"
    SETTING_REFUSED = "AMP114"
    COMPILED = "AMP115"
    # Mixed precision, or a part of it, is not in force.
    SWITCH_FAILED = "AMP201"
    REWRITE_FAILED = "AMP202"
    NAME_IS_GONE = "AMP203"
    CALLBACK_IS_OFF = "AMP204"
    SERVED_IN_FLOAT32 = "AMP205"
    UNCHECKED_LISTS = "AMP206"
    # Loss scales and overflows.
    OVERFLOW = "AMP301"
    OVERFLOW_ORIGIN = "AMP302"
    LOWEST_SCALE = "AMP303"
    BACK_TO_FLOAT32 = "AMP304"
    SCALED_ALREADY = "AMP305"
    NOT_SCALED = "AMP306"
    # Several workers.
    SETTINGS_DISAGREE = "AMP401"
    PLANS_DISAGREE = "AMP402"
    WORKER_IS_SILENT = "AMP403"
    EARLIER_VARIABLES = "AMP404"
    # Checkpoints and other files.
    NO_SCALE_IN_CHECKPOINT = "AMP501"
    RECORD_IS_UNUSABLE = "AMP502"
    NOT_WRITTEN = "AMP503"

    def ends(self, text: str) -> str:
        """Return a message that ends with the code; values may yet be put into it."""
        return f"{text} ({self.value})"

    def say(self, text: str) -> None:
        """Print a line on stderr, for who started the program."""
        print(self.ends(f"tf-amp: {text}"), file=sys.stderr, flush=True)

    def inform(self, text: str, *values: object) -> None:
        """Log for information a line that begins with our name and has the code."""
        _logging().info(self.ends(f"tf-amp: {text}"), *values)

    def warn(self, text: str, *values: object) -> None:
        """Log a warning that begins with our name and ends with the code."""
        _logging().warning(self.ends(f"tf-amp: {text}"), *values)

    def warn_once(self, text: str, *values: object) -> None:
        """Log a warning that ends with the code, the first time in this process."""
        if text not in _said:
            _said.add(text)
            self.warn(text, *values)


# Texts of warnings that were given once.
_said: set[str] = set()


@functools.cache
def _logging() -> Any:
    """Return what logs, in a line of the caller; the doctor does without it."""
    from absl import logging

    logging.skip_log_prefix(Code.inform)
    logging.skip_log_prefix(Code.warn)
    logging.skip_log_prefix(Code.warn_once)
    return logging
