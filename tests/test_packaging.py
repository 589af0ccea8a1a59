"""The package as users install it: what is in it, and that it starts by itself."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import zipfile

import pytest

from tests.installations import Environment, built_wheel, copy_sources
from tests.processes import ROOT, run, run_python

TRAIN = """
import os, sys
import tensorflow as tf
if "late" in sys.argv: os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"
weights = tf.Variable(tf.ones((256, 256)) / 256.0)

@tf.function
def infer(x):
    for _ in range(4):
        x = tf.nn.relu(tf.matmul(x, weights))
    return x

assert abs(float(infer(tf.ones((256, 256)))[0, 0]) - 1.0) < 0.05
tf_amp = sys.modules.get("tf_amp")
plans = tf_amp.plans() if tf_amp else ()
print("mixed" if plans else "imported" if tf_amp else "float32")
"""
# O2 converts whatever is eligible, so that the result does not hang on this machine.
ALWAYS = {"TF_AMP_OPT_LEVEL": "O2"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("installed") / "venv")
    environment.pip("install", "--no-deps", "--no-index", str(built_wheel()))
    (environment.folder / "train.py").write_text(TRAIN)
    return environment


@pytest.mark.parametrize(
    "machine", ["x86_64", pytest.param("aarch64", marks=pytest.mark.long)]
)
def test_the_wheel_is_for_any_python_and_holds_all_it_needs(machine: str) -> None:
    # What else may be asked of the system was looked at when it was built.
    wheel = built_wheel(machine)
    assert wheel.name.endswith(f"-py3-none-manylinux2014_{machine}.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "tf_amp_autostart.pth",
        "grappler_pass/_kept_weights.so",
        "grappler_pass/_shim_cpu.so",
        "grappler_pass/_shim_gpu.so",
        "tf_amp/runtime/autostart.py",
    } <= names
    assert any(name.startswith("grappler_pass/costs/profiles/") for name in names)
    packages = {name.split("/")[0] for name in names if name.endswith(".py")}
    assert packages <= {"tf_amp", "grappler_pass", "keras_callbacks"}
    assert "tf_amp/stale.py" not in names


# One of the two runs where there is no compiler.
@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (["train.py", "late"], {}),
        (
            ["-m", "train"],
            {"TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE": "1", "PATH": ""},
        ),
    ],
)
def test_a_script_elsewhere_runs_in_mixed_precision_when_told(
    installed: Environment, arguments: list[str], env: dict[str, str]
) -> None:
    command = [str(installed.python), *arguments]
    ended = run(command, env={**ALWAYS, **env}, cwd=installed.folder)
    assert ended.lines() == ["mixed"]


def test_the_command_runs_a_script_in_mixed_precision(installed: Environment) -> None:
    command = [str(installed.python.with_name("tf-amp")), "run", "train.py"]
    ended = run(command, env=ALWAYS, cwd=installed.folder)
    assert ended.lines()[-1] == "mixed"


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_installation_ends_with_one_sentence(platform: str) -> None:
    imports = "from setuptools.command import bdist_wheel, build_ext, editable_wheel"
    setup = f"sys.platform = {platform!r}; runpy.run_path('setup.py')"
    code = f"import sys, runpy; {imports}; {setup}"
    ended = run([sys.executable, "-c", code], cwd=ROOT)
    assert ended.code == 1
    assert f"supports Linux on x86-64 and aarch64, and this is {platform}" in ended.err
    assert "Traceback" not in ended.err


def test_without_site_packages_it_does_not_start(installed: Environment) -> None:
    assert installed.has_autostart()
    assert not installed.has_autostart("-S")


def test_a_target_folder_does_not_start_by_itself(tmp_path: pathlib.Path) -> None:
    environment = Environment(tmp_path / "venv", with_tensorflow=False)
    target = str(tmp_path / "target")
    install = ("install", "--no-deps", "--no-index", "--target", target)
    environment.pip(*install, str(built_wheel()))
    assert not environment.has_autostart(PYTHONPATH=target)
    code = "import tf_amp.runtime.autostart as a; print(a.is_installed())"
    assert environment.run(code, PYTHONPATH=target) == ["False"]


def test_a_user_installation_starts_and_uninstalling_removes_it(
    tmp_path: pathlib.Path,
) -> None:
    environment = Environment(
        tmp_path / "venv", with_tensorflow=False, with_user_site=True
    )
    # Within the environment, since pip will not uninstall what lies outside of it.
    base = {"PYTHONUSERBASE": str(environment.folder / "user")}
    install = ("install", "--user", "--no-deps", "--no-index")
    environment.pip(*install, str(built_wheel()), **base)
    assert environment.has_autostart(**base)
    assert not environment.has_autostart()
    environment.pip("uninstall", "--yes", "tf-amp", **base)
    assert not environment.has_autostart(**base)
    assert not list(environment.folder.rglob("tf_amp_autostart.pth"))


def test_an_editable_installation_starts_and_uninstalling_removes_it(
    tmp_path: pathlib.Path,
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    copy_sources(sources)
    environment = Environment(tmp_path / "venv")
    install = ("install", "--no-deps", "--no-index", "--no-build-isolation")
    environment.pip(*install, "--editable", str(sources))
    assert environment.has_autostart()
    code = "import tf_amp; print(tf_amp.__file__)"
    assert environment.run(code) == [f"{sources}/tf_amp/__init__.py"]
    assert all(shim.is_file() for shim in shims_in(sources))
    environment.pip("uninstall", "--yes", "tf-amp")
    assert not environment.has_autostart()
    assert not (environment.packages / "tf_amp_autostart.pth").exists()


def test_the_shim_builds_where_no_compiler_is_installed_but_zig_is(
    tmp_path: pathlib.Path,
) -> None:
    # Where zig is installed nothing has to be asked for.
    (tmp_path / "ziglang.py").write_text("raise ImportError")
    env = {"PATH": str(tmp_path), "CC": "", "PYTHONPATH": str(tmp_path)}
    asked = run_python(_REQUIREMENTS, env=env).lines()
    assert asked == ["['ziglang']"]
    # A stand-in for the ziglang package, which calls the compiler that is here.
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler to stand in for zig")
    package = tmp_path / "packages" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import os, sys\n"
        "assert sys.argv[1] == 'cc'\n"
        f"os.environ['PATH'] = {os.environ['PATH']!r}\n"
        f"os.execv({compiler!r}, ['cc', *sys.argv[2:]])\n"
    )
    build_without_compiler(tmp_path, PYTHONPATH=str(package.parent))


def shims_in(sources: pathlib.Path) -> list[pathlib.Path]:
    """Return where the shims are after a build in place."""
    return [sources / "grappler_pass" / f"_shim_{kind}.so" for kind in ("cpu", "gpu")]


def build_without_compiler(folder: pathlib.Path, **env: str) -> None:
    """Build a copy of the sources where no compiler is found."""
    sources = folder / "sources"
    sources.mkdir()
    copy_sources(sources)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    bare = {"PATH": str(folder), "CC": ""}
    run(build, env={**bare, **env}, cwd=sources).lines()
    assert all(shim.is_file() for shim in shims_in(sources))


_REQUIREMENTS = """
import setuptools.build_meta
print(setuptools.build_meta.get_requires_for_build_wheel())
"""
