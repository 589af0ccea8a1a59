"""The environment without the user's settings, for checks of the installation."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tf_amp.config.amp_config import CACHE, OWN_PREFIX, SWITCH_PREFIX, TUNE
from tf_amp.config.list_edits import PREFIX

_PREFIXES = (OWN_PREFIX, SWITCH_PREFIX, PREFIX)


@contextlib.contextmanager
def settings_set_aside() -> Iterator[None]:
    """Let this process be as if nothing were set, for a while.

    Nothing is measured meanwhile, and the cache stays where it is. Not for programs
    with threads that read the environment.
    """
    names = [n for n in os.environ if n.startswith(_PREFIXES) and n != CACHE]
    aside = {name: os.environ.pop(name) for name in names}
    os.environ[TUNE] = "off"
    try:
        yield
    finally:
        del os.environ[TUNE]
        os.environ.update(aside)
