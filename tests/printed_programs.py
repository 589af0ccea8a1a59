"""Programs as text, each with what it prints: `programs*.txt` beside their test.

  := SLOW
  import time
  # what programs begin with that are `on` it

  == a function traced while another thread enables is rewritten
  on: PROBE SLOW
  env: TF_AMP_OPT_LEVEL=O2
  print(tf_amp.is_enabled(), dtype_of(product()))
  -->
  True bfloat16

Each program has a process of its own, and begins with `PROBE` of `tests.fresh_process`
or what it is `on` instead, one after the other: `PROBE`, `NOTHING`, `TWO_CPUS` (the CPU
is two devices), texts of the files beside. Behind an arrow stands what is printed: `#`
is any number, `...` anything of a line, and as a line any lines; behind `--> err`
the lines of standard error that begin with "tf-amp: ", without that; behind `--> said`
what stands in one place each of it.
Behind a further arrow stands what the program prints when it runs again, in the same
folder. `FOLDER` is an empty one, `FOLDER/cache` its cache if it is `tuned`, that is,
compares steps. `each: A B = 1 : x | 2 : y` is a program for each alternative, in which
1 or 2 stands for A. `long: B` leaves alternatives whose values hold B to
`make test-long`, and `long:` alone all.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.forking import run_forked
from tests.fresh_process import PROBE
from tests.two_cpus import BEGIN

_BEGINNINGS = {"PROBE": PROBE, "NOTHING": "", "TWO_CPUS": BEGIN}
_SETTING = re.compile(r"(on|env|each|tuned|long): ?(.*)")
_WILD = {"#": r"\d+(?:\.\d+)?", "...": ".*", "\n...\n": r"\n(?:.*\n)*"}
Text = tuple[str, str, str]


class PrintedProgram(NamedTuple):
    """A program with its environment, and what each of its runs prints.

    Attributes:
      code: with what it begins with.
      env: its variables.
      is_tuned: whether its steps are compared.
      runs: of each run, the lines of standard output and of standard error, if asked.
    """

    code: str
    env: dict[str, str]
    is_tuned: bool
    runs: tuple[dict[str, str], ...]

    def check(self, folder: pathlib.Path) -> None:
        """Run it in processes that share a folder; what they print must be this."""
        tuned = {"TF_AMP_TUNE": "on", "TF_AMP_STRICT": "1"}
        env = {**tuned, "TF_AMP_CACHE": "FOLDER/cache"} if self.is_tuned else {}
        for expected in self.runs:
            (folder / "cache").mkdir(exist_ok=True)
            done = run_forked(
                self.code.replace("FOLDER", str(folder)),
                env={
                    name: value.replace("FOLDER", str(folder))
                    for name, value in {**env, **self.env}.items()
                },
            )
            said = re.findall("^tf-amp: (.*)$", done.err, re.MULTILINE)
            found = {"": "\n".join(done.lines()), "err": "\n".join(said)}
            for stream, text in expected.items():
                wanted = text.replace("FOLDER", str(folder))
                if stream == "said":
                    for line in wanted.splitlines():
                        assert len(_pattern(line).findall(done.err)) == 1, done.err
                    continue
                pattern = _pattern(f"\n{wanted}\n")
                assert pattern.fullmatch(f"\n{found[stream]}\n"), (
                    f"{found[stream]}\nis not\n{wanted}\n{done.err}"
                )


def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"(#|\n\.\.\.\n|\.\.\.)", text)
    return re.compile("".join(_WILD.get(p) or re.escape(p) for p in parts))


def texts_of(path: pathlib.Path) -> Iterator[Text]:
    """Yield mark, title and text of each beginning and program of a file."""
    parts = re.split(r"^(==|:=) (.*)\n", path.read_text(encoding="utf-8"), flags=re.M)
    return zip(*[iter(parts[1:])] * 3, strict=True)


def beginning(path: pathlib.Path, name: str) -> str:
    """Return what programs of a file begin with, to be used elsewhere."""
    return _begun({title: text for _, title, text in texts_of(path)}, name)


def programs_beside(test: str) -> list[object]:
    """Return the programs of all files beside a test, as parameters named by titles."""
    paths = sorted(pathlib.Path(test).parent.glob("programs*.txt"))
    found = [text for path in paths for text in texts_of(path)]
    texts = {title: text for _, title, text in found}
    return [
        pytest.param(
            _parsed(filled, texts),
            id=f"{title}{which}",
            marks=pytest.mark.long if _takes_long(filled, which) else (),
        )
        for mark, title, text in found
        if mark == "=="
        for which, filled in alternatives(text)
    ]


def alternatives(text: str) -> Iterator[tuple[str, str]]:
    """Yield what distinguishes each alternative of a text, and it with its values."""
    line = re.search(r"^each: (.*?) = (.*)\n", text, re.MULTILINE)
    if line is None:
        yield "", text
        return
    names, rest = line[1].split(), text.replace(line[0], "", 1)
    for values in line[2].split(" | "):
        filled = rest
        for name, value in zip(names, values.split(" : "), strict=True):
            filled = filled.replace(name, value.strip())
        yield from ((f": {values}{more}", made) for more, made in alternatives(filled))


def _settings(text: str) -> tuple[dict[str, str], str]:
    """Return the settings that a text begins with, and the rest of it."""
    settings = {}
    while match := _SETTING.match(text):
        settings[match[1]] = match[2]
        text = text[match.end() :].removeprefix("\n")
    return settings, text


def _takes_long(text: str, which: str) -> bool:
    part = _settings(text)[0].get("long")
    return part is not None and part in which


def _begun(texts: dict[str, str], name: str) -> str:
    if name in _BEGINNINGS:
        return _BEGINNINGS[name]
    settings, code = _settings(texts[name])
    return _all_begun(texts, settings.get("on", "")) + code


def _all_begun(texts: dict[str, str], names: str) -> str:
    return "\n".join(_begun(texts, name) for name in names.split())


def _parsed(text: str, texts: dict[str, str]) -> PrintedProgram:
    settings, rest = _settings(text)
    code, *blocks = re.split(r"^-->(.*)\n", rest, flags=re.MULTILINE)
    runs: list[dict[str, str]] = []
    for stream, printed in zip(blocks[::2], blocks[1::2], strict=True):
        if not runs or stream.strip() in runs[-1]:
            runs.append({})
        runs[-1][stream.strip()] = printed.strip("\n")
    env = dict(word.split("=", 1) for word in settings.get("env", "").split())
    code = f"{_all_begun(texts, settings.get('on', 'PROBE'))}\n{code}"
    return PrintedProgram(code, env, "tuned" in settings, tuple(runs or [{}]))
