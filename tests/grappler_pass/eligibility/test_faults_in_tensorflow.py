"""The faults in the table are TensorFlow's own: each shows without anything of ours."""

from __future__ import annotations

import pytest

from grappler_pass.eligibility.known_wrong import ROWS
from tests.forking import run_forked
from tests.processes import run_python
from tests.wrong_kernels import PROGRAMS
from tf_amp import _tensorflow_private as private
from tf_amp.config import devices

# Larger than what rounding a result makes.
WRONG = 0.02
# What a program shows, and the CPUs that have it; any of several.
CASES = {
    (name, dtype, row.library): row.flags
    for name in PROGRAMS
    for row in ROWS
    if row.name == name.partition(" ")[0]
    for dtype in row.dtypes.split()
}


@pytest.mark.long
@pytest.mark.parametrize(("name", "dtype", "library"), CASES)
def test_the_kernel_is_wrong_in_tensorflow_itself(
    name: str, dtype: str, library: str
) -> None:
    flags = CASES[name, dtype, library]
    if flags != "any" and devices.cpu_flags().isdisjoint(flags.split()):
        pytest.skip(f"this CPU has none of {flags}")
    if library == "oneDNN" and not private.is_onednn_enabled():
        pytest.skip("oneDNN is off")
    code = f"from tests import wrong_kernels\nwrong_kernels.main({name!r}, {dtype!r})"
    if library == "Eigen":
        done = run_python(code, env={"TF_ENABLE_ONEDNN_OPTS": "0"})
    else:
        done = run_forked(code)
    # Some of them end the process.
    if done.code == 0 and float(done.lines()[-1]) < WRONG:
        pytest.skip("the fault no longer shows, or not on this CPU")
