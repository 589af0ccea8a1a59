"""What commands share: options, results, exit codes, and the scripts that they run.

What is wrong with the value of an option is said before anything is imported or run. A
result is fitted to a terminal, plain text, or JSON. An exit code means the same in
every command, but that `run` ends as its script does; what it comes to in a command
stands in its `EXITS`, which its help and docs/exit_codes.md show.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from tf_amp.config import scope_registry
from tf_amp.config.amp_config import OPTIONS, SETTINGS, text_of
from tf_amp.errors import (
    REFUSED,
    AmpError,
    ConfigError,
    ScriptMissingError,
    guess_path,
)
from tf_amp.report import codec
from tf_amp.report.counts import about
from tf_amp.run import progress
from tf_amp.tools import running_scripts

if TYPE_CHECKING:
    from tf_amp.run.graph_cases import GraphCase

_T = TypeVar("_T")

DONE, FAILED, NOTHING = 0, 1, 3
# What a shell makes of a program that Ctrl-C has ended.
INTERRUPTED = 130

MEANINGS: Mapping[int, str] = {
    DONE: "done",
    FAILED: "something failed: the script, or what was to be found out",
    REFUSED: "a wrong command line, setting or file, so that nothing was done",
    NOTHING: "there was nothing to look at",
    INTERRUPTED: "interrupted",
}
# Alike in all commands.
_COMMON = {
    REFUSED: "a wrong command line, setting or file",
    INTERRUPTED: MEANINGS[INTERRUPTED],
}
_STDOUT = 1
# Jupyter sets it for a kernel, and so for what a cell starts.
_OF_NOTEBOOKS = "JPY_PARENT_PID"
# Between two lines of progress, where there is no bar.
SILENT_SECONDS = 15.0


def exit_codes(of_command: Mapping[int, str] = MEANINGS) -> str:
    """Return a sentence of exit codes; by default those of no command."""
    meanings = sorted({**_COMMON, **of_command}.items())
    return f"Exit codes: {'; '.join(f'{code} {what}' for code, what in meanings)}."


def say(text: str) -> None:
    """Print a line that is no result, on standard error."""
    print(f"tf-amp: {text}", file=sys.stderr)


def show_json(rows: Iterable[Any], stream: TextIO | None = None) -> None:
    """Print an array of plain values and of results, on standard output by default."""
    print(codec.to_json(list(rows)), file=stream, flush=True)


def _stream_beside_script() -> TextIO:
    """Return where JSON goes, before anything of a script runs.

    Standard output becomes standard error from now on: for Python, C and child
    processes, and for what the script has done at its very end. The stream that is
    returned leads where standard output did.
    """
    try:
        standard, errors = os.dup(_STDOUT), sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        # One of them is closed, or something else than a descriptor.
        return sys.stdout
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(errors, _STDOUT)
    return open(standard, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


@contextlib.contextmanager
def progress_shown() -> Iterator[None]:
    """Show how far tools come: a bar on a terminal, else a line now and then.

    Not around a script, whose own output would go through it.
    """
    from rich import progress as bars
    from rich.console import Console

    last = begin = time.monotonic()
    first: tuple[int, int | None] = (0, None)

    def show_line(what: str, done: int, total: int | None) -> None:
        nonlocal last, begin, first
        now = time.monotonic()
        if total != first[1] or done < first[0]:
            begin, first = now, (done, total)
        if now - last >= SILENT_SECONDS:
            last = now
            of_all = "" if total is None else f" ({done} of {total})"
            if total is not None and done > first[0]:
                left = (now - begin) / (done - first[0]) * (total - done)
                of_all = f" ({done} of {total}, {about(left)} left)"
            print(f"tf-amp: {what}{of_all} ...", file=sys.stderr, flush=True)

    # A cell of a notebook shows each redrawn bar as a line, though it gives commands a
    # terminal, and FORCE_COLOR, which makes one of any pipe for rich.
    if _OF_NOTEBOOKS in os.environ or not sys.stderr.isatty():
        with progress.listened_to(show_line):
            yield
        return
    bar = bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        speed_estimate_period=float("inf"),
    )
    task = bar.add_task("", total=None)

    def show(what: str, done: int, total: int | None) -> None:
        bar.update(task, description=what, completed=done, total=total)

    with bar, progress.listened_to(show):
        yield


class Source:
    """The model or script of a command.

    Attributes:
      is_model: whether it is a folder, and so a SavedModel.
      stream: where the command's JSON goes.
      code: that a script has ended with.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """Take what the command line names.

        Raises:
          AmpError: there is no such thing, or options are given that belong to the
            other kind of it.
        """
        model, self._options, self.code = options.model, options, DONE
        if not model.exists():
            raise ScriptMissingError(
                f"{model}: no such SavedModel or script{guess_path(model) or '.'}"
            )
        self.is_model = model.is_dir()
        if self.is_model and (options.script_arguments or options.seconds is not None):
            raise ConfigError(
                f"{model} is a folder, so a SavedModel: --seconds and arguments belong "
                "to scripts."
            )
        foreign = [f"--{name}" for name in _OF_MODELS if getattr(options, name, None)]
        if foreign and not self.is_model:
            raise ConfigError(
                f"{model} is a script: {' and '.join(foreign)} can be given with a "
                "SavedModel only."
            )
        is_shared = not self.is_model and getattr(options, "json", False)
        self.stream = _stream_beside_script() if is_shared else sys.stdout

    def run(self) -> None:
        """Run a script, in its time; say so if it fails."""
        options = self._options
        code = running_scripts.run_limited(
            str(options.model), options.script_arguments, options.seconds
        )
        if code is not None and not isinstance(code, int):
            # What `python` would print, too.
            print(code, file=sys.stderr)
            code = FAILED
        self.code = code or DONE
        if self.code:
            say(f"the script ended with exit code {self.code}.")

    def exit_code(self, answer: int) -> int:
        """Return the command's exit code, given that of what it has found out."""
        return FAILED if self.code else answer

    def run_observed(
        self,
        look: Callable[[GraphCase], _T],
        show: Callable[[Iterable[_T]], None],
        environment: Mapping[str, str],
        is_last: Callable[[_T], bool] = lambda _: False,
    ) -> int:
        """Run a script, look at its graphs, and return the command's exit code.

        What a look at each returns is shown at the end, however the script ends. The
        environment has settings for plans. `is_last` tells whether the pass would not
        look again, when Grappler comes a second time with the graph.
        """
        from tf_amp.compare.fingerprint import digest_of_products

        results: dict[Hashable, _T] = {}

        def observe(case: GraphCase) -> None:
            products = digest_of_products(case.graph_def, case.shapes)
            key = case.name, case.item.fetch, products
            # The second of Grappler's two iterations has the graph that runs.
            if key not in results or not is_last(results[key]):
                results[key] = look(case)

        running_scripts.observe(observe, environment)
        try:
            self.run()
        finally:
            show(results.values())
        if not results:
            say(f"{why_no_graph()}.")
        return self.exit_code(DONE if results else NOTHING)


def why_no_graph() -> str:
    """Say why the pass was given no graph that it could have changed."""
    if "tensorflow" not in sys.modules:
        return "the script did not import TensorFlow"
    from tf_amp.runtime import switch

    config = scope_registry.base_config()
    if not config.rewrites:
        return f"every graph stays unchanged at level {config.opt_level}"
    if switch.is_switched_off():
        return "the script switched mixed precision off"
    return "the script ran no graph with a matrix product or convolution"


# A year: what is longer is a mistake, and no timer of the system takes it.
MOST_SECONDS = 365 * 86400.0
# Settings that say how graphs are rewritten.
REWRITING = ("dtype", "opt_level", "device_profile", "exclude")
# Options that make sense for SavedModels only; no command has to have all of them.
_OF_MODELS = ("data", "signature", "batch", "measure")


class Options:
    """The options of a command, which it declares by a method for each kind."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        """Add options to the parser of a command."""
        self.parser = parser
        self.add = parser.add_argument

    def flag(self, *names: str, help: str, **more: Any) -> None:
        """Add an option without a value."""
        self.add(*names, action="store_true", help=help, **more)

    def path(self, *names: str, metavar: str, help: str, **more: Any) -> None:
        """Add a path."""
        self.add(*names, type=pathlib.Path, metavar=metavar, help=help, **more)

    def seconds(self, name: str, help: str, default: float | None = None) -> None:
        """Add a number of seconds, up to a year."""

        def seconds_from(text: str) -> float:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not 0.0 < value <= MOST_SECONDS:
                raise argparse.ArgumentTypeError(
                    f"received {text!r}; wanted are seconds, a number greater than 0 "
                    f"and at most {MOST_SECONDS:.0f}"
                )
            return value

        self.add(name, type=seconds_from, metavar="N", help=help, default=default)

    def rows(self, name: str, default: int) -> None:
        """Add how many rows are printed; 0 becomes None, for all of them."""
        said = f"rows to print ({default}); 0 for all"
        self.add(
            name,
            type=lambda text: _whole_number(text, 0) or None,
            metavar="N",
            help=said,
            default=default,
        )

    def batch(self) -> None:
        """Add the size of a batch that a stored model leaves open."""
        said = "plan for this size where a model leaves the first one open"
        self.add(
            "--batch", type=lambda text: _whole_number(text, 1), metavar="N", help=said
        )

    def checked(
        self, name: str, check: Callable[[str, str], object], **more: Any
    ) -> None:
        """Add an option whose value stays text, and is refused as a setting would be.

        The check gets the value and the option's name.
        """

        def text_from(text: str) -> str:
            try:
                check(text, name)
            except AmpError as error:
                said = str(error).removeprefix(f"{name}: ")
                raise argparse.ArgumentTypeError(said) from error
            return text

        self.add(name, type=text_from, **more)

    def setting(self, name: str, **changed: Any) -> None:
        """Add a setting; `changed` is what of its option differs in this command.

        The value stays text, as a variable has it, and is checked as a variable is.
        """
        row, option = SETTINGS[name], {**OPTIONS[name], **changed}
        if "choices" in option or option.get("action") == "store_true":
            self.add(row.option, **option)
        else:
            self.checked(row.option, _FILE_CHECKS.get(name, row.read), **option)

    def rewriting(self, levels: str) -> None:
        """Add the settings that say how graphs are rewritten; `levels`: to which."""
        for name in REWRITING:
            self.setting(name, **({"help": levels} if name == "opt_level" else {}))

    def model(self, data: str = "") -> None:
        """Add the model or script, and what belongs to one of them.

        `data` says what `--data` holds; empty for a command that takes none.
        """
        said = "folder of a SavedModel, or a script, which runs in float32"
        self.path("model", metavar="SAVED_MODEL|SCRIPT", help=said)
        if data:
            self.path("--data", metavar="NPZ", help=data)
        self.add("--signature", help="only this one of a SavedModel")
        self.limit()

    def limit(self) -> None:
        """Add the time of a script, and say where its own arguments stand."""
        self.seconds("--seconds", "stop the script after so long")
        self.parser.epilog = "What follows `--` are the script's own arguments."


def _check_profile(value: str, name: str) -> None:
    from grappler_pass.costs import DeviceProfile

    DeviceProfile.load(SETTINGS["device_profile"].read(value, name))


def check_file(value: str, name: str) -> None:
    """Refuse the path of a file that there is not."""
    if not pathlib.Path(value).expanduser().is_file():
        raise ConfigError(f"{name}: there is no file {value}.")


# Settings whose files have to be there when they are given as options.
_FILE_CHECKS: Mapping[str, Callable[[str, str], object]] = {
    "device_profile": _check_profile,
    "ranges": check_file,
}


def environment_from(options: argparse.Namespace) -> dict[str, str]:
    """Return the variables of the settings that are given as options."""
    values = {
        row.variable: getattr(options, row.option[2:].replace("-", "_"), None)
        for row in SETTINGS.values()
    }
    return {name: text_of(value) for name, value in values.items() if value}


def _whole_number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"received {text!r}; wanted is {least} or more"
        )
    return int(text)
