"""What differs between machines, versions and runs, masked in a command's output."""

from __future__ import annotations

import re
from collections.abc import Callable

# As TensorFlow's C++ writes it.
_NATIVE_LOG = (
    r"^(?:(?:[IWEF]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IWEF] ).*\.(?:cc|cu|h|inc):\d+\]"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|To enable the following instructions: .* rebuild TensorFlow).*\n"
)
# What the doctor says of this machine alone, as text and as JSON.
_OF_MACHINE = (
    (r"^(?:ok   GPU|(?:bug |kept) kernel|tf-amp protects|\d+ known error).*\n", ""),
    (r'  \{\n   "what": "(?:kernel|GPU)[^}]*\},\n', ""),
    (r"^(ok   (?:versions|oneDNN|machine) +).*", r"\1..."),
    (r'("what": "(?:versions|oneDNN|machine)",\n   "state": ").*(",)', r"\1...\2"),
    (r"^(ok   CPU +).*:", r"\1...:"),
    (
        r"^(This is for \S+\.) This machine has [\s\S]*?profile\s+is\s+\S+\.$",
        r"\1 ...",
    ),
    (r'("what": "CPU",\n   "state": ").*:', r"\1...:"),
)
# How far a command has come, on a slow machine.
_PROGRESS = ((r"^tf-amp: .* \.\.\.\n", ""),)
# Said by a TensorFlow older than what the warning is about.
_OF_VERSION = ((r"^WARNING:absl:tf-amp: TensorFlow .*\(AMP203\)\n", ""),)
# Where something was measured, and with what.
_MEASURED_ON = (
    (r"^Only the CPU is measured; .*\n", ""),
    (r"^.+(, \d+ threads: kept in)", r"...\1"),
    (r"(the profile so far was that of) cpu-\S+:", r"\1 PROFILE:"),
    (r"^.+(, \d+ cores?) \(.*\)$", r"...\1"),
    (r"^Python \d.*$", "Python ..."),
    (r"^written \d.* UTC on .*$", "written ... UTC on ..."),
    (r"^tf-amp \d[\d.]*, tensorflow.*$", "tf-amp ..., tensorflow ..."),
    (r"^.+, \d+ cores?$", "..., # cores"),
    (r"(?<=  )(?:noise \d+%|within noise|faster|slower)(?=  )", "VERDICT"),
    (r"^The noise is up to .*\n", ""),
    (r"^(Predictions were off most for) .*$", r"\1 ..."),
)
# Other versions of Python fold a usage elsewhere, quote choices, and add defaults.
_USAGE = (
    (r"\s+\(default:\s+True\)$", ""),
    (r"^usage: .*\n(?: .*\n)*", lambda found: " ".join(found[0].split()) + "\n"),
    (r"\(choose from .*\)", lambda found: found[0].replace("'", "")),
)
# Not within a name such as float16, nor "16 bits"; a sign where one may stand.
_NUMBER = (
    r"(?<![A-Za-z\d])(?:(?<=[\s(\[])-)?(?!16[ -]bit)"
    r"\d[\d.,]*(?:e[+-]?\d+)?(?<![.,])"
)
_FIGURES = (
    (r"[\d?]+(?:x[\d?]+)+", lambda found: re.sub(r"\d+", "#", found[0])),
    (_NUMBER, "#"),
    (r"# (?:ns|us|ms|s)\b", "# seconds"),
    (r"[█▉▊▋▌▍▎▏━╸╺]+", "█"),
    (r"─+", "─"),
)
_SPACES = ((r"(?<=\S) {2,}", "  "), (r" +$", ""))
_RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (_NATIVE_LOG, ""),
    *_OF_MACHINE,
    *_OF_VERSION,
    *_PROGRESS,
    *_MEASURED_ON,
    *_USAGE,
    *_FIGURES,
    *_SPACES,
)


def masked(text: str, folders: dict[str, str]) -> str:
    """Return a text without what is of one machine or run only.

    Args:
      text: what a command has printed.
      folders: what to write for a path that begins so.
    """
    for path, name in folders.items():
        text = text.replace(path, name)
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text
