"""The faults in the table are TensorFlow's own: each shows without anything of ours."""

from __future__ import annotations

import pytest

from grappler_pass.kernels.known_wrong import ROWS
from tests.grappler_pass.kernels.test_known_wrong import dtype_of
from tests.processes import run_python
from tests.wrong_kernels import PROGRAMS
from tf_amp.config import devices

# Larger than what rounding a result makes.
WRONG = 0.02


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_kernel_is_wrong_in_tensorflow_itself(name: str) -> None:
    flags = next(row.flags for row in ROWS if row.name == name.partition(" ")[0])
    if flags != "any" and devices.cpu_flags().isdisjoint(flags.split()):
        pytest.skip(f"this CPU has none of {flags}")
    done = run_python(
        f"from tests import wrong_kernels\nwrong_kernels.main({name!r}, "
        f"{dtype_of(name)!r})",
        env={"TF_ENABLE_ONEDNN_OPTS": "1"},
    )
    died = done.code != 0
    if not died and float(done.lines()[-1]) < WRONG:
        pytest.skip("the fault no longer shows: the row may go for this TensorFlow")
    assert died or float(done.lines()[-1]) >= WRONG
