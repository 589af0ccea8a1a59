"""What the doctor finds, and what it advises."""

import dataclasses
import importlib
import re

import pytest

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec
from tests.forking import run_forked
from tests.fresh_process import run_interpreter
from tests.processes import ROOT
from tf_amp.commands import _doctor_checks as doctor_checks
from tf_amp.commands import doctor
from tf_amp.commands._doctor_checks import described, nodes_here
from tf_amp.commands.doctor import DEPENDENCIES, Finding
from tf_amp.config import devices
from tf_amp.config.amp_config import SWITCH, AmpConfig
from tf_amp.config.setting_values import LIST_PREFIX

DOCTOR = ("-m", "tf_amp", "doctor", "--all")
# Four GPUs on two sockets, linked by PCIe.
PCIE = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity
GPU0\t X \tPIX\tSYS\tSYS\t0-3,8-11\t0
GPU1\tPIX\t X \tSYS\tSYS\t0-3,8-11\t0
GPU2\tSYS\tSYS\t X \tPHB\t4-7,12-15\t1
GPU3\tSYS\tSYS\tPHB\t X \t4-7,12-15\t1

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
"""
# Two GPUs with NVLink and a network card, underlined as newer drivers do.
NVLINK = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tPXB\t0-15\t0\t\tN/A
GPU1\tNV12\t X \tSYS\t0-15\t0\t\tN/A
NIC0\tPXB\tSYS\t X \t\t\t\t
"""
CHECKED = "variable autostart versions oneDNN CPU machine type layer rewrite".split()
TWO = {"0": "0-3,8-11", "1": "4-7,12-15"}
# Puts the autostart's finder where the .pth file of an installation puts it.
STARTED = """
import runpy, sys
import tf_amp.runtime._autostart_finder
sys.argv = ["tf_amp", "doctor", "--all"]
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
    checks = {row for what, row in found.items() if what in CHECKED}
    assert len(checks) == len(CHECKED) and {mark for mark, _ in checks} == {"ok"}
    assert done.out.startswith("v100: 16 bits help. Fusions may help, too.\n")
    assert found["variable"][1].startswith(
        "on: TF_ENABLE_AUTO_MIXED_PRECISION=1 TF_AMP_"
    )
    assert "TF_AMP_DEVICE_PROFILE=v100" in found["variable"][1]
    assert "tensorflow" in found["versions"][1]
    assert found["type"][1].startswith("float16: planned for the profile v100")
    assert "float16 at O1" in found["layer"][1]
    assert found["rewrite"][1].startswith("works")
    assert done.out.splitlines()[-1] == "tf-amp is healthy."


def test_what_is_fine_is_one_line_and_what_16_bits_gain_comes_first():
    done = run_forked(STARTED.replace(', "--all"', ""))
    first, *_, last = done.out.splitlines()
    assert re.match(r"(CPU|GPU): (16 bits (help|gain nothing)|It is not known) ", first)
    assert "Fusions may help" in first
    hint = "`tf-amp doctor --all` shows all that was checked."
    assert last == f"tf-amp is healthy. {hint}"
    assert not re.search("^(ok|kept|bug) ", done.out, re.M), done.out


@pytest.mark.parametrize("name", DeviceProfile.names())
def test_the_answer_is_that_of_the_prices(name):
    profile = DeviceProfile.load(name)
    model, low_dtype = CostModel(profile), devices.profile_dtype(profile)
    matrix = TensorSpec((4096, 4096), "float32")
    product = OpCall("MatMul", {}, (matrix, matrix), (matrix,))
    ratio = (
        model.price(product, "float32").seconds
        / model.price(product, low_dtype).seconds
    )
    (finding,) = doctor_checks.gain(AmpConfig(device_profile=name))
    assert finding.what == name and not finding.mark
    first, speed, *more = finding.state.splitlines()
    gains = {
        True: "16 bits help. Fusions may help, too.",
        False: "16 bits gain nothing. Fusions may help, which work in float32.",
    }
    assert first == gains[ratio > 1.2]
    for alone in (AmpConfig(fuse=()), AmpConfig(opt_level="O0")):
        config = dataclasses.replace(alone, device_profile=name)
        (finding,) = doctor_checks.gain(config)
        assert finding.state.startswith(first.partition(" Fusions")[0] + "\n")
    assert f"In {low_dtype}, " in speed
    assert any("At O1" in each for each in more) == (ratio < 1.2)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (set(), "neither amx_bf16 nor avx512_bf16"),
        ({"avx512_bf16"}, "avx512_bf16 but not amx_bf16"),
    ],
)
def test_a_cpu_that_gains_nothing_is_told_what_it_lacks(flags, said, monkeypatch):
    monkeypatch.setattr(devices, "cpu_flags", lambda: frozenset(flags))
    cpu = devices.Device("CPU", "/physical_device:CPU:0", "Some CPU")
    profile = DeviceProfile.load("cpu-generic")
    first, *more = doctor_checks.gain_by(profile, "bfloat16", cpu, fuses=False)
    assert first == "16 bits gain nothing on this Some CPU."
    assert any(said in each for each in more)
    assert "profile cpu-generic, the nearest that is known" in more[-1]


def test_where_nothing_was_measured_the_answer_is_that_it_is_not_known():
    cpu = devices.Device("CPU", "/physical_device:CPU:0", "Some Arm")
    generic = DeviceProfile.load("cpu-generic")
    profile = dataclasses.replace(generic, note="It has not been measured.")
    assert list(doctor_checks.gain_by(profile, "bfloat16", cpu)) == [
        "It is not known whether 16 bits help on this Some Arm. Fusions may help, "
        "which work in float32.",
        "It has not been measured.",
    ]


def test_a_kernel_that_is_wrong_is_not_called_ok():
    found = list(doctor_checks.wrong_kernels(AmpConfig()))
    said = {"kept": "tf-amp keeps it in float32", "bug": "with or without tf-amp"}
    assert found and all(each.state.endswith(said[each.mark]) for each in found)


def test_what_tf_amp_protects_from_is_told_from_what_it_does_not():
    kept, bug = (Finding("kernel", "", kind=kind) for kind in ("kept", "bug"))
    assert doctor._said_of_kernels([kept, kept, bug]) == (
        "tf-amp protects you from 2 known errors of TensorFlow's 16-bit kernels on "
        "this machine: such operations stay float32. TensorFlow has 1 known error in "
        "float32, too, with or without tf-amp; `tf-amp doctor --all` names them."
    )
    assert doctor._said_of_kernels([Finding("oneDNN", "on")]) == ""


def test_without_site_it_says_that_it_cannot_start_by_itself():
    done = run_interpreter(("-S", *DOCTOR))
    assert done.code == 1
    mark, state = lines_of(done)["autostart"]
    assert mark == "FAIL"
    assert "cannot start by itself: python -S" in state
    assert "tf-amp run SCRIPT" in done.out
    assert "pip install absl-py numpy protobuf rich scipy wrapt" in done.out


def test_everything_that_is_required_is_looked_for():
    project = (ROOT / "pyproject.toml").read_text()
    (required,) = re.findall(r"^dependencies = \[(.*?)^\]", project, re.S | re.M)
    assert [name for _, name in DEPENDENCIES] == re.findall(r'"([\w-]+)', required)
    for module, _ in DEPENDENCIES:
        assert importlib.import_module(module)


def settings_examined(**environ):
    """Return what the doctor finds of settings, and of all else."""
    program = """
import tf_amp.runtime._autostart_finder
from tf_amp.commands import doctor
doctor.report_health(shows_all=True)
"""
    return lines_of(run_forked(program, env=environ))


@pytest.mark.parametrize(
    "environ",
    [
        {"TF_AMP_EXCLUDE": "matmul"},
        {"TF_AMP_EXCLUDE": ".*", SWITCH: "1"},
        {f"{LIST_PREFIX}DENYLIST_ADD": "MatMul"},
        {"TF_AMP_OPT_LEVEL": "O0"},
    ],
)
def test_what_the_user_keeps_in_float32_is_not_for_the_installation_to_fix(environ):
    found = settings_examined(**environ)
    assert not [row for row in found.items() if row[1][0] == "FAIL"], found
    assert found["rewrite"] == ("ok", "works: a function of this process was rewritten")


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"TF_AMP_DEVICE_PROFILE": "v1000", SWITCH: "1"}, "v1000"),
        ({f"{LIST_PREFIX}DENYLIST_ADD": "MatMull"}, "MatMull"),
        ({"TF_AMP_RANGES": "/nowhere/ranges.json"}, "/nowhere/ranges.json"),
        ({"TF_AMP_DTYPE": "float12", SWITCH: "1"}, "float12"),
    ],
)
def test_a_setting_that_cannot_be_used_is_one_finding(environ, named):
    found = settings_examined(**environ)
    failures = {what: row for what, row in found.items() if row[0] == "FAIL"}
    assert list(failures) == ["settings"], found
    assert named in failures["settings"][1]
    assert found["rewrite"][0] == "ok"


def test_a_variable_that_is_misspelt_is_worth_a_note():
    code = "import os; os.environ['TF_ENABLE_AUTO_MXED_PRECISION'] = '1'\n"
    code += "from tf_amp.commands.doctor import examine\n"
    code += "for found, _ in zip(examine(), range(2)): print(found.mark, found.state)"
    said = "TF_ENABLE_AUTO_MXED_PRECISION is no setting, and does nothing; did you "
    said += f"mean {SWITCH}?"
    assert run_forked(code).lines()[1] == f"note {said}"


def test_a_copy_that_is_not_installed_says_so():
    # -I leaves only what is installed, so that a development install counts too.
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.meta_path[:] = [f for "
    )
    program += "f in sys.meta_path if not getattr(f, 'tf_amp_autostart', False)]\n"
    program += "from tf_amp.commands import doctor; print(doctor._start())"
    done = run_forked(program)
    assert "tf_amp_autostart.pth is in no site folder" in done.out, done.err
    assert "in your copy of the repository: pip install . (without --target)" in (
        done.out
    )


def test_what_fails_unexpectedly_calls_for_another_installation():
    program = """
from tf_amp.commands import doctor
from tf_amp.commands import _doctor_checks as doctor_checks
def rewrite(config):
    raise OSError("a file is damaged")
doctor_checks.CHECKS = (rewrite,)
doctor.report_health()
"""
    done = run_forked(program)
    assert lines_of(done)["rewrite"] == ("FAIL", "OSError: a file is damaged")
    remedy = "in your copy of the repository: pip install --force-reinstall --no-deps ."
    assert f"-> {remedy}\n" in done.out


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
    assert "pip install tensorflow-cpu, or for GPUs: pip install 'tensorflow[and-" in (
        done.out
    )


def test_nodes_links_and_the_command_that_binds_are_said():
    assert described(TWO, PCIE) == (
        "NUMA node 0: CPUs 0-3,8-11, GPU0, GPU1; "
        "NUMA node 1: CPUs 4-7,12-15, GPU2, GPU3; "
        "link PIX: GPU0-GPU1; link SYS: GPU0-GPU2, GPU0-GPU3, GPU1-GPU2, GPU1-GPU3; "
        "link PHB: GPU2-GPU3; "
        "on node 0 alone: numactl --cpunodebind=0 --membind=0 python train.py"
    )


@pytest.mark.parametrize(
    ("nodes", "topology", "said"),
    [
        ({"0": "0-15"}, "", "NUMA node 0: CPUs 0-15"),
        (
            {"0": "0-15"},
            NVLINK,
            "NUMA node 0: CPUs 0-15, GPU0, GPU1; link NV12: GPU0-GPU1",
        ),
        ({"0": "0-15"}, "No devices were found\n", "NUMA node 0: CPUs 0-15"),
        ({}, "", "the kernel reports no NUMA node"),
    ],
)
def test_on_one_node_nothing_is_bound_and_what_is_unclear_is_left_out(
    nodes, topology, said
):
    assert described(nodes, topology) == said


def test_nodes_without_cpus_that_this_process_may_use_do_not_count(
    tmp_path,
):
    for node, cpus in {**TWO, "10": ""}.items():
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    assert nodes_here(tmp_path, range(16)) == TWO
    assert nodes_here(tmp_path, [12]) == {"1": "4-7,12-15"}


def test_the_doctor_asks_the_driver_that_it_finds(tmp_path, monkeypatch):
    driver = tmp_path / "nvidia-smi"
    (tmp_path / "topo").write_text(NVLINK)
    driver.write_text('#!/bin/sh\n[ "$*" = "topo -m" ] && cat "${0%/*}/topo"\n')
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (finding,) = doctor_checks.machine(AmpConfig())
    assert finding.what == "machine" and not finding.remedy
    assert "link NV12: GPU0-GPU1" in finding.state
    driver.write_text("#!/bin/sh\nexit 9\n")
    (finding,) = doctor_checks.machine(AmpConfig())
    assert "link" not in finding.state
