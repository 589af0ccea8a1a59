"""Programs for processes of their own, in which the CPU is two devices."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from tests.forking import run_forked
from tests.processes import Outcome

BEGIN = """
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, numpy as np, tf_amp

def refused(words, call, *args, **kwargs):
    '''Check that a call raises ConfigError with all of these words, apart by "|".'''
    try:
        call(*args, **kwargs)
    except tf_amp.ConfigError as error:
        assert all(each in str(error) for each in words.split("|")), error
    else:
        raise AssertionError(f"not refused: {words}")
"""


def run_on_two(
    program: str, before: str = "", env: Mapping[str, str] | None = None
) -> Outcome:
    """Run a program, whose assertions hold, after what several programs begin with."""
    done = run_forked(BEGIN + before + textwrap.dedent(program), env=env)
    done.lines()
    return done
