"""Names of settings that nobody knows, as a slip of the keyboard makes them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from tf_amp.errors import ConfigError


def refuse_unknown(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ConfigError for the first of the names, by alphabet, that is not known."""
    unknown = sorted(set(names) - set(known))
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], known, n=1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError(
        f"{unknown[0]} is no setting{guess}. Known are {', '.join(known)}."
    )
