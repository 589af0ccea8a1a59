"""Where the shim is missing, mixed precision stays off."""

from tests.forking import run_forked
from tests.fresh_process import PROBE
from tf_amp.runtime import autostart


def test_a_missing_shim_is_an_error_if_called_for_and_a_warning_if_switched_on():
    program = """
import pathlib
from grappler_pass import plugin
from grappler_pass.plugin import ShimError
from tf_amp.runtime import switch as runtime

plugin.shim_path = lambda device_type: pathlib.Path("/nowhere/shim.so")
try:
    tf_amp.enable()
except ShimError as error:
    print("/nowhere/shim.so" in str(error), tf_amp.is_enabled())
runtime.enable_from_environment()
print(dtype_of(product()), tf_amp.is_enabled())
"""
    done = run_forked(PROBE + program, env={"TF_ENABLE_AUTO_MIXED_PRECISION": "1"})
    assert done.out.splitlines() == ["True False", "float32 False"], done.err
    # Once by the call, and once more by the autostart where that is installed.
    warnings = 1 + autostart.is_installed()
    assert done.err.count("Mixed precision stays off") == warnings
    assert done.err.count("(AMP201)") == warnings
