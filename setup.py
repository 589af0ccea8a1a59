"""Build what is in C and the autostart file; everything else is in pyproject.toml."""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.errors import CompileError

if not sys.platform.startswith("linux"):
    sys.exit(
        f"tf-amp supports Linux on x86-64 and aarch64, and this is {sys.platform}. On "
        "Windows, install it in WSL 2; on macOS, in a Linux container."
    )

AUTOSTART_FILE = "tf_amp_autostart.pth"
DEVICE_TYPES = ("CPU", "GPU")
ZIG = [sys.executable, "-m", "ziglang", "cc"]
# Not optimized, zig would add checks, whose library it first compiles for a minute.
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden"]


def find_compiler() -> list[str] | None:
    """Return the command of a C compiler that works, or None."""
    named = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else []
    installed = [[path] for path in map(shutil.which, ("cc", "gcc", "clang")) if path]
    return next(filter(can_compile, [*named, *installed, ZIG]), None)


def can_compile(compiler: list[str]) -> bool:
    """Tell whether a compiler is there, and C's headers with it."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "probe.c")
        source.write_text("#include <pthread.h>\n#include <stdlib.h>\nint probe;\n")
        command = [*compiler, *FLAGS, "-o", f"{folder}/probe.so", source]
        try:
            return subprocess.run(command, capture_output=True).returncode == 0
        except OSError:
            return False


class BuildShim(build_ext):
    """Compile the shim as a plain shared object that serves every Python."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the path of the library, without Python's ABI in its name."""
        return f"{fullname.replace('.', os.sep)}.so"

    def build_extension(self, ext: Extension) -> None:
        """Run the compiler once; there is nothing of Python to link with."""
        compiler = find_compiler()
        if compiler is None:
            raise CompileError(
                "No C compiler works here. Install one (Debian: `apt install gcc "
                "libc6-dev`; anywhere: `pip install ziglang`) and try again."
            )
        target = pathlib.Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        macros = [f"-D{name}={value}" for name, value in ext.define_macros]
        command = [*compiler, *FLAGS, *macros, "-o", str(target), *ext.sources]
        self.spawn([*command, "-lpthread", "-ldl"])


def autostart_line() -> str:
    """Return the autostart sources as the one line that Python's site module runs."""
    finder, hooks = bare_code("_autostart_finder"), bare_code("_autostart_hooks")
    import_of_hooks = "'from tf_amp.runtime._autostart_hooks import find_watched'"
    assert import_of_hooks in finder
    code = finder.replace(import_of_hooks, repr(hooks))
    # A namespace of its own, since this line runs in that of `site`; and no `compile`,
    # whose first call in a process takes a millisecond.
    return f"import sys; exec({code!r}, {{}})\n"


def bare_code(module: str) -> str:
    """Return the code of a module of tf_amp without docstrings and annotations."""
    source = pathlib.Path(__file__).with_name("tf_amp") / "runtime" / f"{module}.py"
    tree = ast.parse(source.read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            node.body = [each for each in node.body if not is_text(each)]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree)


def is_text(statement: ast.stmt) -> bool:
    """Tell whether a statement is a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


class BuildPackages(build_py):
    """Put the autostart file beside the packages, where pip installs it."""

    def run(self) -> None:
        """Build the packages, then the autostart file."""
        if not self.editable_mode:
            # What an earlier build left there may be gone from the sources.
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            pathlib.Path(self.build_lib, AUTOSTART_FILE).write_text(autostart_line())


class EditableWheel(editable_wheel):
    """Put the autostart file into the wheel of an editable installation too."""

    def run(self) -> None:
        """Build the wheel, then add a file to it."""
        super().run()
        wheels = pathlib.Path(self.dist_dir).glob("*.whl")
        add_to_wheel(
            max(wheels, key=os.path.getmtime), AUTOSTART_FILE, autostart_line()
        )


def add_to_wheel(wheel: pathlib.Path, name: str, text: str) -> None:
    """Add a file to a wheel and to its RECORD, by which pip uninstalls."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    row = f"{name},sha256={digest.rstrip(b'=').decode()},{len(text.encode())}\n"
    with zipfile.ZipFile(wheel) as archive:
        members = [(entry, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
        for entry, content in members:
            is_record = entry.filename.endswith(".dist-info/RECORD")
            archive.writestr(entry, row.encode() + content if is_record else content)


class AnyPythonWheel(bdist_wheel):
    """Tag the wheel for its platform and any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags for language, ABI and platform."""
        return "py3", "none", super().get_tag()[2]


setup(
    # Build requirements that depend on the machine: pip installs them for the build.
    setup_requires=[] if find_compiler() else ["ziglang"],
    ext_modules=[
        Extension(
            f"grappler_pass._shim_{device_type.lower()}",
            sources=["grappler_pass/shim.c"],
            define_macros=[("DEVICE_TYPE", f'"{device_type}"')],
        )
        for device_type in DEVICE_TYPES
    ]
    + [
        Extension(
            "grappler_pass._kept_weights", sources=["grappler_pass/kept_weights.c"]
        )
    ],
    cmdclass={
        "bdist_wheel": AnyPythonWheel,
        "build_ext": BuildShim,
        "build_py": BuildPackages,
        "editable_wheel": EditableWheel,
    },
)
