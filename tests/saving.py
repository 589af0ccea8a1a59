"""The option `--memory save` of campaigns: steps may take longer to hold less.

Of small programs with prices of their own little is worth it. So for half of the
numbers that prices are drawn from no time is too long, and it need not hold less in the
end: all that can run again does.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from unittest import mock

import tf_amp
from grappler_pass.planning import coloring
from grappler_pass.rewriting import recomputation, second_try
from tf_amp import LossScale
from tf_amp.config.amp_config import MEMORY_WORDS, SAVE, SPEED

OPTION = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
OPTION.add_argument("--memory", choices=MEMORY_WORDS, default=SPEED)
_ANY_SHARE, _NO_SHARE = 1e9, -2.0


def words_of(arguments: list[str] | None) -> tuple[str, ...]:
    """Return the words of a command line that say that memory is saved, if they do."""
    options, _ = OPTION.parse_known_args(arguments)
    return ("--memory", SAVE) if options.memory == SAVE else ()


@contextlib.contextmanager
def share_of(number: int) -> Iterator[None]:
    """Let a step take 5 % longer to hold less or, for half of the numbers, any time."""
    if number % 4 < 2:
        yield
        return
    with mock.patch.object(coloring, "SHARE", _ANY_SHARE), _all_again():
        yield


@contextlib.contextmanager
def saving_by(loss_scale: LossScale) -> Iterator[None]:
    """Scale the losses of all gradients taken inside, and have steps hold less.

    By prices of a device without 16-bit units, so that all of it is in float32. What
    has no product is not rewritten, so multiplications count as some.
    """
    tf_amp.enable(
        memory=SAVE,
        lists={"add": {"allow": ["Mul"]}},
        loss_scale=loss_scale,
        device_profile="cpu-generic",
        fuse="off",
        tune="off",
        strict=True,
        verbose=False,
    )
    try:
        with (
            # No types: those take a share of the time, too.
            mock.patch.object(coloring, "SHARE", _NO_SHARE),
            # Else a step is not skipped whose gradients are finite without a scale.
            mock.patch.object(second_try, "with_second_tries", lambda _: None),
            _all_again(),
        ):
            yield
    finally:
        tf_amp.disable()


@contextlib.contextmanager
def _all_again() -> Iterator[None]:
    with (
        mock.patch.object(recomputation, "SHARE", _ANY_SHARE),
        mock.patch.object(recomputation, "_holds_less", lambda *_: True),
    ):
        yield
