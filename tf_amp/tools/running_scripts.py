"""Run a script as `python` would, with mixed precision switched on.

The switch is set in the environment, where the script's own child processes find it
too, and TensorFlow is not imported before the script does so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import pathlib
import runpy
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from tf_amp.config.amp_config import (
    DTYPE,
    LOSS_SCALE,
    LOSS_SCALING_SWITCH,
    LOW_DTYPES,
    PLACES,
    REWRITE_SWITCH,
    SWITCH,
    AmpConfig,
)
from tf_amp.errors import AmpError, ScriptMissingError, guess_path, show_from
from tf_amp.runtime import autostart
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from tf_amp.rewriting.compiled import WithoutXla
    from tf_amp.rewriting.host import Observer

# Modules that stand between a command and the script that it runs.
_BELOW_SCRIPTS = frozenset(
    f"{__name__} tf_amp.tools.bench.worker runpy importlib importlib.util "
    "importlib._bootstrap importlib._bootstrap_external".split()
)


class TimeIsUp(BaseException):
    """Ends the script; not an Exception, so that the script does not catch it."""


def add_script_to(parser: argparse.ArgumentParser) -> None:
    """Add a script or module, and all that follows it as its own arguments."""
    parser.add_argument(
        "-m", dest="module", action="store_true", help="SCRIPT is a module's name"
    )
    parser.add_argument("script", metavar="SCRIPT", help="as python would get it")
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own"
    )
    # Else an error that lacks the script names them, too.
    rest.required = False


def switch_on(settings: Mapping[str, str | None]) -> None:
    """Set the switch and the settings given on the command line; None: not given.

    What is given goes before the environment, as it does in `enable`. A switch that
    says "off" is for programs started without this command.
    """
    set_here = {name: value for name, value in settings.items() if value is not None}
    os.environ.update(set_here)
    # What others say of the same thing goes.
    if LOSS_SCALE in set_here:
        os.environ.pop(LOSS_SCALING_SWITCH, None)
    if DTYPE in set_here and os.environ.get(SWITCH, "").strip().lower() in LOW_DTYPES:
        os.environ[SWITCH] = "1"
    if not AmpConfig.from_env().enabled:
        os.environ[SWITCH] = "1"
        os.environ.pop(REWRITE_SWITCH, None)
    # The paths that were read, since the script may change to another folder.
    variables = AmpConfig.from_env().to_env()
    given_places = [name for name in PLACES if os.environ.get(name, "").strip()]
    os.environ.update({name: variables[name] for name in given_places})
    if not autostart.is_installed():
        importlib.import_module("tf_amp.runtime._autostart_finder")


def observe(
    observer: Observer,
    environment: Mapping[str, str | None],
    without_xla: WithoutXla | None = None,
) -> None:
    """Have an observer receive the graphs of the script to come, in float32.

    The environment has settings for plans. None for `without_xla`: what XLA compiles
    comes as it is compiled.
    """
    from tf_amp.rewriting import host

    host.build(observer=observer, without_xla=without_xla)
    switch_on(environment)


def run_script(script: str, arguments: Sequence[str], *, as_module: bool) -> None:
    """Run a script or a module, if there is such a one, as the main program.

    Raises:
      ScriptMissingError: there is none.
      TensorFlowMissingError: it wants TensorFlow, which is not installed.
    """
    sys.argv[:] = [script, *arguments]
    if as_module:
        _set_first_folder(pathlib.Path.cwd())
        with raised_by_script():
            try:
                spec = importlib.util.find_spec(script)
            except ModuleNotFoundError as error:
                # A package around it may be missing, or lack what it imports.
                if not f"{script}.".startswith(f"{error.name}."):
                    raise
                spec = None
            if spec is not None:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
                return
        raise ScriptMissingError(f"no module named {script}")
    if not script:
        raise ScriptMissingError(
            "received an empty text where a script's name should be"
        )
    path = pathlib.Path(script)
    if not path.exists():
        raise ScriptMissingError(
            f"can't open file {str(path.resolve())!r}: no such file{guess_path(path)}"
        )
    if path.is_dir() and not (path / "__main__.py").exists():
        raise ScriptMissingError(f"{script} is a folder without a __main__.py to run")
    _set_first_folder(path.resolve().parent if path.is_file() else path)
    with raised_by_script():
        runpy.run_path(script, run_name="__main__")


def run_limited(script: str, arguments: Sequence[str], seconds: float | None) -> object:
    """Run a script until it ends or its time is up; return what it exits with.

    Whatever folder it changes to, this process is in the same as before.
    """
    folder = pathlib.Path.cwd()
    try:
        with limited(seconds):
            run_script(script, arguments, as_module=False)
    except TimeIsUp:
        print(f"tf-amp: stopped after {seconds:g} s.", file=sys.stderr)
    except SystemExit as exit_:
        return exit_.code
    finally:
        os.chdir(folder)
    return None


@contextlib.contextmanager
def raised_by_script() -> Iterator[None]:
    """Let what a script raises be its own, and shown as `python` shows it."""
    try:
        yield
    except SystemExit:
        raise
    except BaseException as error:
        # The frames of the script; None where it did not begin, as it cannot.
        first = error.__traceback__
        while first and first.tb_frame.f_globals.get("__name__") in _BELOW_SCRIPTS:
            first = first.tb_next
        if isinstance(error, AmpError) and first is not None:
            error.is_scripts_own = not error.is_of_environment
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
            check_tensorflow()
        show_from(error, first)
        raise


def _set_first_folder(folder: pathlib.Path) -> None:
    """Look for modules where python would; for our own where they were found."""
    root = str(pathlib.Path(__file__).resolve().parents[2])
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(folder)
    if root not in sys.path:
        sys.path.append(root)


@contextlib.contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Raise `TimeIsUp` in the main thread after so many seconds."""
    if seconds is None:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
