"""Functions that run as they are, whether mixed precision is on or off."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from tf_amp.runtime import scope, switch


def unmixed() -> AbstractContextManager[Any]:
    """Return a context in which what is traced or loaded is not rewritten later."""
    return scope.float32_scope() if switch.is_enabled() else contextlib.nullcontext()
