"""`tf-amp tune`: run a script and measure every cost that its graphs hang on.

What is measured goes to the database, where later runs, and other workers that share
it, find it. What is there already is not measured again unless its runs lie far apart,
so that an interrupted run is resumed by starting it once more.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeVar

from tf_amp.commands.shared import printing, script_graphs
from tf_amp.commands.shared.arguments import seconds_from_text
from tf_amp.config import amp_config
from tf_amp.config.amp_config import DEFAULT_LEVEL, LOW_DTYPES, AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.measuring import progress
from tf_amp.measuring.progress import Measuring, Note
from tf_amp.tools import running_scripts

if TYPE_CHECKING:
    from rich.progress import Progress

    from grappler_pass.pipeline import Rewrite

_Kind = TypeVar("_Kind")

SUMMARY = "run a script, and measure all that it needs"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what `tf-amp tune` understands to its parser."""
    add = parser.add_argument
    add("--dtype", choices=LOW_DTYPES, help="this device's by default")
    add(
        "--seconds",
        type=seconds_from_text,
        metavar="N",
        help="measure no longer than this; else all of it",
    )
    running_scripts.add_script_to(parser)


def main(options: argparse.Namespace) -> int:
    """Run the script, show what is being measured, and sum it up at the end."""
    limit = f"budget:{options.seconds:g}" if options.seconds else "full"
    running_scripts.switch_on({amp_config.TUNE: limit, amp_config.DTYPE: options.dtype})
    _check_measurable(AmpConfig.from_env())
    from tf_amp.rewriting import host

    display = _Display()
    progress.report_to(display.read)
    host.current().watchers.append(display.planned)
    is_over = False
    try:
        running_scripts.run_script(
            options.script, options.arguments, as_module=options.module
        )
        is_over = True
    except SystemExit:
        is_over = True
        raise
    finally:
        display.sum_up(is_over=is_over)
    return 0


def _check_measurable(settings: AmpConfig) -> None:
    if settings.device_profile is not None:
        raise ConfigError(
            f"{amp_config.DEVICE_PROFILE}={settings.device_profile}: costs of another "
            "device cannot be measured here; unset it."
        )
    if settings.opt_level != DEFAULT_LEVEL:
        raise ConfigError(
            f"{amp_config.OPT_LEVEL}={settings.opt_level} does not look at costs; "
            f"allowed is {DEFAULT_LEVEL}."
        )


class _Display:
    """A progress bar while a graph waits for its prices, and what came of it."""

    def __init__(self) -> None:
        # Not loaded before it is needed, as everything here.
        import rich.console

        self._console = rich.console.Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._notes: list[Note] = []
        # At which graphs were planned last; empty: none were.
        self._level = ""

    def read(self, note: Note) -> None:
        """Follow what is measured, and whom this process waits for."""
        if isinstance(note, Measuring):
            self._show(note)
        elif isinstance(note, progress.Waiting) and not self._of(progress.Waiting):
            self._say(f"{note.by} measures on this machine; waiting for it to end")
        self._notes.append(note)

    def planned(self, rewrite: Rewrite) -> None:
        """Note at which level a graph was planned."""
        if rewrite.plan is not None:
            self._level = rewrite.plan.opt_level

    def sum_up(self, *, is_over: bool) -> None:
        """Say how much was measured, and whether the script came to its end."""
        if self._bar is not None:
            self._bar.stop()
        count = sum(len(note.rows) for note in self._of(Measuring))
        if count:
            self._say(f"{count} costs measured; {_where_kept()}")
        if not is_over:
            self._say("the script ended early; the same command goes on from here")
        elif reason := self._reason(has_rows=bool(count)):
            self._say(reason)

    def _show(self, state: Measuring) -> None:
        """Follow what is measured for one graph."""
        if self._bar is None:
            self._bar = printing.progress_bar(self._console)
            self._bar.add_task("", total=state.total)
            self._bar.start()
        now = f"measuring {state.op}"
        self._bar.update(self._bar.task_ids[0], completed=state.done, description=now)
        if state.is_over:
            self._bar.stop()
            self._bar = None

    def _reason(self, *, has_rows: bool) -> str:
        """Say what a script that came to its end has left; empty: nothing."""
        asked, left = self._of(progress.Left), frozenset[str]()
        for each in asked:
            # What was left of an earlier graph may be known by now.
            left = (left - each.asked) | each.missing
        if left:
            cause = "measuring has failed" if asked[-1].is_broken else "time was over"
            return f"{cause}, {len(left)} left; run it again"
        if has_rows:
            return ""
        if tried := sum(bool(note.op) for note in self._of(Measuring)):
            return f"none of {tried} operations could be measured"
        if not self._level:
            return f"nothing was measured: {script_graphs.why_no_graph()}"
        refused = dict.fromkeys(note.why for note in self._of(progress.Refused))
        if refused and not asked:
            return f"nothing was measured: {', '.join(refused)}"
        if self._level != DEFAULT_LEVEL:
            return f"level {self._level} does not look at costs"
        return "nothing was left to measure"

    def _of(self, kind: type[_Kind]) -> list[_Kind]:
        return [note for note in self._notes if isinstance(note, kind)]

    def _say(self, text: str) -> None:
        self._console.print(f"tf-amp: {text}", markup=False)


def _where_kept() -> str:
    from tf_amp.measuring import process_costs

    folder = AmpConfig.from_env().cache_dir
    if process_costs.is_all_kept(folder):
        return f"kept in {folder}; `tf-amp costs show` prints them"
    if folder is None:
        return f"not kept: there is no cache folder; {amp_config.CACHE} names one"
    return f"not kept: {folder} cannot be used; {amp_config.CACHE} names another folder"
