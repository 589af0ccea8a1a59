"""Plans of small programs under every shipped profile, one line each, and counts.

`tests/golden/plans.txt` holds for each program, profile, 16-bit type and level how many
type attributes are in 16 bits, why others are not, casts, the predicted time of a step
and a digest of all types and causes; `counts.txt` what a step starts, casts and holds,
`calls.txt` how many functions the pass calls, of which it may be a tenth off.
Without an option the files are written anew, to be reviewed as a diff: of the programs
that are named, or of all.
"""

from __future__ import annotations

import argparse
import operator
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from grappler_pass.costs import DeviceProfile
from tests import golden_lines
from tests.golden_lines import REWRITING_LEVELS, Key
from tests.golden_programs import arriving
from tests.golden_programs.catalog import BY_NAME
from tf_amp.config.amp_config import DEFAULT_LEVEL, LOW_DTYPES

FOLDER = pathlib.Path(__file__).with_name("golden")


class Kept(NamedTuple):
    """A file with a line for each of some keys.

    Attributes:
      path: of the file.
      keys: yields what there are lines of.
      line: returns what follows a key in its line.
      agree: whether an old and a new line say the same.
    """

    path: pathlib.Path
    keys: Callable[[], Iterator[Key]]
    line: Callable[[Key], str]
    agree: Callable[[str, str], bool] = operator.eq

    def lines(self) -> dict[str, str]:
        """Return the lines of the file by the keys that they begin with."""
        text = self.path.read_text() if self.path.exists() else ""
        pairs = (line.partition(": ") for line in text.splitlines())
        return {key: rest for key, _, rest in pairs}

    def write(self, lines: Mapping[str, str]) -> None:
        """Write the file, its lines sorted."""
        ordered = sorted(f"{key}: {rest}\n" for key, rest in lines.items())
        self.path.write_text("".join(ordered))

    def changes(self, keys: Iterable[Key]) -> Iterator[str]:
        """Yield the old and the new line of each key whose line is another now."""
        held = self.lines()
        for key in keys:
            old, new = held.get(str(key)), self.line(key)
            if old is None or not self.agree(old, new):
                yield from () if old is None else (f"- {key}: {old}",)
                yield f"+ {key}: {new}"


PLANS = Kept(FOLDER / "plans.txt", golden_lines.plan_keys, golden_lines.plan_line)
COUNTS = Kept(FOLDER / "counts.txt", golden_lines.count_keys, golden_lines.counts_line)
CALLS = Kept(
    FOLDER / "calls.txt",
    golden_lines.call_keys,
    golden_lines.calls_line,
    golden_lines.calls_agree,
)
FILES = (PLANS, COUNTS, CALLS)


def _keys_of(kept: Kept, programs: Iterable[str]) -> list[Key]:
    keys = list(kept.keys())
    return [key for program in programs for key in keys if key.program == program]


def write(programs: Iterable[str]) -> None:
    """Write the lines of programs, and drop those that are about nothing any more."""
    for kept in FILES:
        made = {str(key): kept.line(key) for key in _keys_of(kept, programs)}
        known = {str(key) for key in kept.keys()}
        held = {key: rest for key, rest in kept.lines().items() if key in known}
        kept.write({**held, **made})


def check(programs: Iterable[str]) -> int:
    """Print which lines of programs have changed; return 1 if any has, else 0."""
    changed = False
    for line in _changes(programs):
        print(line, flush=True)
        changed = True
    return 1 if changed else 0


def _changes(programs: Iterable[str]) -> Iterator[str]:
    for name in arriving.outdated(programs):
        yield f"{name}: Grappler makes another graph of it; --store writes that"
    for kept in FILES:
        yield from _leftover(kept)
        yield from kept.changes(_keys_of(kept, programs))


def _leftover(kept: Kept) -> Iterator[str]:
    known = {str(key) for key in kept.keys()}
    for key, rest in kept.lines().items():
        if key not in known:
            yield f"- {key}: {rest}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden_plans", description=__doc__
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="all by default")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--check", action="store_true", help="print what has changed; exit 1 if any has"
    )
    actions.add_argument(
        "--store",
        action="store_true",
        help="write the graphs of programs in which oneDNN has more fused",
    )
    actions.add_argument(
        "--show",
        nargs=2,
        metavar=("PROGRAM", "PROFILE"),
        help="print a plan with each type attribute's type, cause and seconds",
    )
    parser.add_argument("--type", choices=LOW_DTYPES, help="of the plan to show")
    parser.add_argument("--level", choices=REWRITING_LEVELS, default=DEFAULT_LEVEL)
    return parser


def _check_names(names: Iterable[str], what: str, known: Iterable[str]) -> None:
    known = tuple(known)
    for name in names:
        if name not in known:
            raise ValueError(
                f"{what}: received {name!r}; allowed are {', '.join(known)}"
            )


def _check_programs(names: Iterable[str]) -> None:
    """Raise ValueError for what there is not, or what is planned otherwise here."""
    _check_names(names, "PROGRAM", BY_NAME)
    for name in names:
        if why := arriving.why_not_here(name, "gpu"):
            raise ValueError(why)


def _show(program: str, profile: str, dtype: str | None, level: str) -> None:
    own = golden_lines.own_key(program, profile)
    key = own._replace(dtype=dtype or own.dtype, level=level)
    print(golden_lines.draft_of(key).plan)


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return _done(options)
    except ValueError as error:
        parser.error(str(error))


def _done(options: argparse.Namespace) -> int:
    programs = options.programs or list(BY_NAME)
    if options.show:
        _check_names([options.show[1]], "PROFILE", DeviceProfile.names())
    _check_programs([options.show[0]] if options.show else programs)
    if options.show:
        _show(*options.show, options.type, options.level)
    elif options.store:
        arriving.store(programs)
    elif options.check:
        return check(programs)
    else:
        write(programs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
