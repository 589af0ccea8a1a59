"""What the doctor finds, and what it advises."""

from tests.fresh_process import run_interpreter
from tests.processes import ROOT

DOCTOR = ("-m", "tf_amp", "doctor")
# Puts the autostart's finder where the .pth file of an installation puts it.
STARTED = """
import runpy, sys
import tf_amp._autostart_finder
sys.argv = ["tf_amp", "doctor"]
runpy.run_module("tf_amp", run_name="__main__")
"""


def lines_of(done):
    """Return the state of each thing looked at, and the mark before it."""
    rows = [line.split(None, 2) for line in done.out.splitlines()]
    return {row[1]: (row[0], row[2]) for row in rows if len(row) == 3}


def test_a_working_installation_is_healthy():
    env = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "TF_AMP_DEVICE_PROFILE": "v100"}
    done = run_interpreter(("-c", STARTED), env=env)
    found = lines_of(done)
    assert done.code == 0, done.out + done.err
    assert {mark for mark, _ in found.values()} == {"ok"}, done.out
    assert found["switch"][1].startswith("on: TF_ENABLE_AUTO_MIXED_PRECISION=1 TF_AMP_")
    assert "TF_AMP_DEVICE_PROFILE=v100" in found["switch"][1]
    assert "tensorflow" in found["versions"][1]
    assert found["choice"][1].startswith("float16: planned for the profile v100")
    assert "float16 at O1" in found["example"][1]
    assert found["rewrite"][1].startswith("works")
    assert done.out.splitlines()[-1] == "healthy"


def test_settings_without_the_switch_are_pointed_out():
    env = {"TF_AMP_OPT_LEVEL": "O2"}
    done = run_interpreter(("-c", STARTED), env=env)
    assert done.code == 0, done.err
    assert lines_of(done)["switch"][0] == "note"
    assert "export TF_ENABLE_AUTO_MIXED_PRECISION=1, since TF_AMP_OPT_LEVEL" in (
        done.out
    )


def test_without_site_it_says_that_it_cannot_start_by_itself():
    done = run_interpreter(("-S", *DOCTOR))
    assert done.code == 1
    mark, state = lines_of(done)["autostart"]
    assert mark == "FAIL"
    assert "cannot start by itself: python -S" in state
    assert "tf-amp run SCRIPT" in done.out
    assert "pip install absl-py numpy scipy rich" in done.out


def test_a_copy_that_is_not_installed_says_so():
    # -I leaves only what is installed, so that a development install counts too.
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.meta_path[:] = [f for "
    )
    program += "f in sys.meta_path if not getattr(f, 'tf_amp_autostart', False)]\n"
    program += "from tf_amp import doctor; print(*doctor._start(), sep='')"
    done = run_interpreter(("-c", program))
    assert "tf_amp_autostart.pth is in no site folder" in done.out, done.err
    assert "pip install tf-amp (without --target)" in done.out


def test_a_bad_setting_and_a_missing_tensorflow_are_findings(tmp_path):
    package = tmp_path / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('nothing here')")
    env = {
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "TF_AMP_DTYPE": "float12",
    }
    done = run_interpreter(("-c", STARTED), env=env)
    found = lines_of(done)
    assert done.code == 1
    assert found["settings"][0] == "FAIL"
    assert "float12" in found["settings"][1]
    assert found["TensorFlow"][0] == "FAIL"
    assert "nothing here" in found["TensorFlow"][1]
    assert "pip install 'tf-amp[cpu]'" in done.out
