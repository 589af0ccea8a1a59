"""Results of commands, their exit codes, and the scripts that they run.

A result is fitted to a terminal, plain text, or JSON. An exit code means the same in
every command, but that `run` ends as its script does; what it comes to in a command
stands in its `EXITS`, which its help and docs/exit_codes.md show.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from tf_amp.config import scope_registry
from tf_amp.report import codec
from tf_amp.run import progress
from tf_amp.tools import running_scripts

if TYPE_CHECKING:
    from tf_amp.run.graph_cases import GraphCase

_T = TypeVar("_T")

DONE, FAILED, REFUSED, NOTHING = 0, 1, 2, 3
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
# Between two lines of progress, where there is no bar.
SILENT_SECONDS = 15.0


def exit_codes(of_command: Mapping[int, str] = MEANINGS) -> str:
    """Return a sentence of exit codes; by default those of no command."""
    meanings = sorted({**_COMMON, **of_command}.items())
    return f"Exit codes: {'; '.join(f'{code} {what}' for code, what in meanings)}."


def say(text: str) -> None:
    """Print a line that is no result, on standard error."""
    print(f"tf-amp: {text}", file=sys.stderr)


def show(*printables: Any) -> None:
    """Print what rich can lay out; in a file or a pipe no line is folded."""
    from rich.console import Console

    console = Console()
    for each in printables:
        if console.is_terminal:
            console.print(each, highlight=False)
        else:
            print(each)


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

    console = Console(stderr=True)
    last = time.monotonic()

    def show_line(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= SILENT_SECONDS:
            last = time.monotonic()
            of_all = "" if total is None else f" ({done} of {total})"
            print(f"tf-amp: {what}{of_all} ...", file=sys.stderr, flush=True)

    if not console.is_terminal:
        with progress.listened_to(show_line):
            yield
        return
    bar = bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
        console=console,
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
        """Take what the command line names."""
        self._options, self.code = options, DONE
        self.is_model = options.model.is_dir()
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
    ) -> int:
        """Run a script, look at its graphs, and return the command's exit code.

        What a look at each returns is shown at the end, however the script ends. The
        environment has settings for plans.
        """
        from tf_amp.compare.fingerprint import digest_of_products

        results: dict[Hashable, _T] = {}

        def observe(case: GraphCase) -> None:
            products = digest_of_products(case.graph_def, case.shapes)
            # The second of Grappler's two iterations has the graph that runs.
            results[case.name, case.item.fetch, products] = look(case)

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
        return f"every graph stays as it is at level {config.opt_level}"
    if switch.is_switched_off():
        return "the script switched mixed precision off"
    return "the script ran no graph with a matrix product or convolution"
