"""Install the package into environments of its own, as users do.

Each environment sees TensorFlow where the tests have it, through a `.pth` file of its
own, so that nothing is downloaded. Files named `.pth` over there are not run for it.
"""

from __future__ import annotations

import atexit
import functools
import pathlib
import platform
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile

from tests.processes import ROOT, Outcome, hide_in, run, run_python

_SOURCES = ("setup.py", "pyproject.toml", "Makefile", "README.md", "LICENSE")
_PACKAGES = ("tf_amp", "grappler_pass", "keras_callbacks")
_PIP = ("--quiet", "--disable-pip-version-check", "--no-input")


class Environment:
    """A virtual environment with, or without, TensorFlow in sight."""

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        with_tensorflow: bool = True,
        with_user_site: bool = False,
    ) -> None:
        """Make the environment in an empty folder."""
        options = ["--system-site-packages"] if with_user_site else []
        make = [sys.executable, "-m", "venv", "--without-pip", *options, str(folder)]
        subprocess.run(make, check=True, timeout=120)
        self.folder = folder
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "lib" / version / "site-packages"
        if with_tensorflow:
            paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
            paths.update(site.getsitepackages())
            (self.packages / "of_the_tests.pth").write_text("\n".join(sorted(paths)))
            hide_in(self.packages)

    def pip(self, *arguments: str, **env: str) -> Outcome:
        """Run the tests' pip for this environment."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        ended = run([*pip, *arguments, *_PIP], env=env, cwd=self.folder)
        ended.lines()
        return ended

    def run(self, code: str, *options: str, **env: str) -> list[str]:
        """Run code in another folder than the source's; return what it printed."""
        return run_python(
            code, python=self.python, env=env, cwd=self.folder, options=options
        ).lines()

    def has_autostart(self, *options: str, **env: str) -> bool:
        """Return whether the interpreter starts with the finder in place."""
        code = (
            "import sys; print([f.__name__ for f in sys.meta_path if type(f) is type])"
        )
        return "TfAmpAutostart" in self.run(code, *options, **env)[0]


def copy_sources(folder: pathlib.Path) -> pathlib.Path:
    """Copy what the package is built from, without anything built before."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for name in _PACKAGES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in _SOURCES:
        shutil.copy(ROOT / name, folder)
    return folder


@functools.cache
def built_wheel(machine: str = platform.machine()) -> pathlib.Path:
    """Build the wheel for a machine as `make dist` does, once per run of the tests."""
    sources = copy_sources(pathlib.Path(tempfile.mkdtemp(prefix="tf-amp-sources-")))
    atexit.register(shutil.rmtree, sources, ignore_errors=True)
    built_before = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    stale = sources / "build" / built_before / "tf_amp" / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    tools = pathlib.Path(sys.executable).parent
    run(["make", f"manylinux2014_{machine}", f"BIN={tools}"], cwd=sources).lines()
    return next((sources / "dist").glob("*.whl"))
