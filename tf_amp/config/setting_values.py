"""Checks of the values of settings, whoever gives them.

Each function returns the value as the configuration holds it, or raises ConfigError
with the setting's name, what was received and what is allowed. Beside single values
these are the regular expressions and Keras layers that stay float32, and changes to the
op lists. What patterns are matched against is decided in
`grappler_pass.eligibility.exclusions`; what a layer makes is marked while it is called.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import pathlib
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from grappler_pass.fusions import RULES
from tf_amp.errors import ConfigError

_Word = TypeVar("_Word", bound=str)

ON = ("1", "true", "on")
OFF = ("0", "false", "off")
# What is said for them of other programs.
_WORDS = (*ON, *OFF, "yes", "no", "none")
DEFAULT_TUNE = "on"
# What was measured beside the program once took so long.
_EARLIER_TUNE = re.compile(r"budget(:[0-9.e+]+)?|full")
_KERAS = ("keras.", "tf_keras.")
# No operation's name holds a colon.
_LAYER_PREFIX = "layer:"

# The variables of TensorFlow's own pass: PREFIX, LIST, _ADD or _REMOVE. Ops given under
# an old and a new name add up, as there.
LIST_PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"
LISTS = ("allow", "infer", "deny", "clear")
VERBS = ("add", "remove")
_LIST_OF_NAME = {
    "ALLOWLIST": "allow",
    "INFERLIST": "infer",
    "DENYLIST": "deny",
    "CLEARLIST": "clear",
    "WHITELIST": "allow",
    "GRAYLIST": "infer",
    "BLACKLIST": "deny",
}
LIST_VARIABLES = {
    f"{LIST_PREFIX}{name}_{verb.upper()}": (verb, list_name)
    for name, list_name in _LIST_OF_NAME.items()
    for verb in VERBS
}

# Keras layers that stay float32, by the patterns that stand for them.
layer_patterns: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_layer_numbers = itertools.count(1)


def checked_word(
    value: object,
    name: str,
    allowed: tuple[_Word, ...],
    fold: Callable[[str], str] = str.lower,
) -> _Word:
    """Return one of the words allowed, in whatever case it was given."""
    text = fold(value) if isinstance(value, str) else value
    for word in allowed:
        if word == text:
            return word
    raise refusal(name, value, f"are {', '.join(allowed)}")


def refusal(name: str, value: object, allowed: str) -> ConfigError:
    """Return the error of a value that is none of those allowed."""
    return ConfigError(f"{name}: received {value!r}; allowed {allowed}.")


def checked_bool(value: object, name: str) -> bool:
    """Return True or False; words such as "no" would all be true."""
    if isinstance(value, bool):
        return value
    raise refusal(name, value, "are True and False")


def flag_from_text(text: str, name: str) -> bool:
    """Return True for a word such as "on", False for one such as "off"."""
    return checked_word(text, name, ON + OFF) in ON


def checked_path(value: object, name: str) -> pathlib.Path:
    """Return a path that was given as one or as text; `~` is the home folder.

    It is absolute, since the program may change to another folder before it is used. A
    word such as "on" is refused: who writes it means no folder of that name.
    """
    text = _path_text(value, name, "a path")
    if text.lower() in _WORDS:
        raise refusal(name, value, f"is a path, such as {os.curdir}{os.sep}{text}")
    return pathlib.Path(text).absolute()


def checked_profile(value: object, name: str = "device_profile") -> str:
    """Return a profile's name as given, or its path: `./v100` is no shipped profile."""
    text = _path_text(value, name, "a profile's name, or its path")
    is_path = os.sep in text or text.endswith(".json")
    return str(pathlib.Path(text).absolute()) if is_path else text


def checked_tune(value: object, name: str = "tune") -> str:
    """Return "on" or "off"."""
    text = value.strip().lower() if isinstance(value, str) else str(value)
    if text in OFF:
        return "off"
    if text not in ON and not _EARLIER_TUNE.fullmatch(text):
        raise refusal(name, value, "are on and off")
    if text not in ON:
        from absl import logging

        said = "%s=%s means on: only the program's own steps are timed."
        logging.log_first_n(logging.WARNING, said, 1, name, text)
    return DEFAULT_TUNE


def checked_tie(value: object, name: str = "tie") -> float:
    """Return a share from 0 to 1."""
    share = _number(value)
    if not 0.0 <= share <= 1.0:
        raise refusal(name, value, "are numbers from 0 to 1")
    return share


def checked_tolerance(value: object, name: str = "tolerance") -> float | None:
    """Return a largest relative error; None: by the type."""
    tolerance = None if value is None else _number(value)
    if tolerance is not None and not 0.0 < tolerance < math.inf:
        raise refusal(name, value, "are numbers greater than 0")
    return tolerance


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def checked_fusions(value: object, name: str = "fuse") -> tuple[str, ...]:
    """Return the names of fusions, each once."""
    text = value.strip().lower() if isinstance(value, str) else value
    if text in OFF:
        return ()
    if text in ON:
        return RULES
    words = re.split(r"[\s,]+", text) if isinstance(text, str) else text
    rules = set(words) if isinstance(words, Iterable) else set()
    if rules and rules <= {*RULES}:
        return tuple(rule for rule in RULES if rule in rules)
    raise refusal(name, value, f"are on, off and {', '.join(RULES)}")


def _path_text(value: object, name: str, allowed: str) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, str) and text:
        # What a shell does, where the variable is set in one.
        return os.path.expanduser(text)
    raise refusal(name, value, f"is {allowed}")


def checked_patterns(value: object, name: str = "exclude") -> tuple[str, ...]:
    """Return one regular expression, or several, as a tuple.

    `@FILE` stands for those in a file, one per line, where lines that begin with # are
    comments.

    Raises:
      ConfigError: a pattern is no text, empty, or no regular expression; or a file
        cannot be read.
    """
    patterns = (value,) if isinstance(value, str | re.Pattern) else value
    if not isinstance(patterns, Iterable):
        allowed = "are regular expressions for names of operations, such as "
        allowed += "['softmax', '^head/'], and Keras layers"
        raise refusal(name, value, allowed)
    spelled_out = (p for each in patterns for p in _spelled_out(each, name))
    texts = []
    for pattern in spelled_out:
        text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(
                f"{name}: received {text!r} as a pattern; a regular expression is "
                "needed, as text that is not empty; or a Keras layer, for what is "
                "traced."
            )
        try:
            re.compile(text)
        except re.error as error:
            said = f"{name}: {text!r} is no regular expression: {error}."
            raise ConfigError(said) from error
        texts.append(text)
    return tuple(texts)


def patterns_from_text(text: str, name: str) -> tuple[str, ...]:
    """Read patterns with spaces between, since no name of an operation holds one."""
    return checked_patterns(text.split(), name)


def _spelled_out(pattern: object, name: str) -> Iterator[object]:
    """Yield a pattern, or those in the file that it names."""
    if not isinstance(pattern, str) or not pattern.startswith("@"):
        yield pattern
        return
    path = pathlib.Path(os.path.expanduser(pattern[1:]))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        said = f"{name}: received {pattern}, but {path} cannot be read: {error}."
        raise ConfigError(said) from error
    yield from (line for line in map(str.strip, lines) if line and line[0] != "#")


def checked_exclusions(value: object, name: str = "exclude") -> tuple[str, ...]:
    """Return regular expressions and Keras layers as patterns.

    A layer's name would not do: TensorFlow calls the second use of a layer `dense` as
    Keras calls the second layer, `dense_1`, and layers in different models may share a
    name. So it gets a pattern that is no operation's name.

    Args:
      value: one of them or several, as for `checked_patterns`; a layer is one of Keras
        3 or tf_keras, built or not.
      name: of the setting, for the error.

    Raises:
      ConfigError: something else is among them.
    """
    if _is_layer(value):
        return (_pattern_of_layer(value),)
    if isinstance(value, str) or not isinstance(value, Iterable):
        return checked_patterns(value, name)
    several = [_pattern_of_layer(each) if _is_layer(each) else each for each in value]
    return checked_patterns(several, name)


def is_of_layer(pattern: str) -> bool:
    """Tell whether a pattern stands for a layer, and no operation has its name."""
    return pattern.startswith(_LAYER_PREFIX)


def _pattern_of_layer(layer: Any) -> str:
    """Return the pattern that stands for a layer."""
    if layer not in layer_patterns:
        name = re.escape(re.sub(r"\s", "_", str(layer.name)))
        layer_patterns[layer] = f"{_LAYER_PREFIX}{name}:{next(_layer_numbers)}"
    return layer_patterns[layer]


def _is_layer(value: object) -> bool:
    return any(
        kind.__name__ == "Layer" and kind.__module__.startswith(_KERAS)
        for kind in type(value).__mro__
    )


@dataclasses.dataclass(frozen=True)
class ListEdit:
    """Ops added to, or removed from, one list; `asked_by` is where."""

    verb: str
    list_name: str
    ops: tuple[str, ...]
    asked_by: str = dataclasses.field(default="lists", compare=False)


def edits_from_env(texts: Mapping[str, str]) -> tuple[ListEdit, ...]:
    """Return the edits that the variables ask for.

    Raises:
      ConfigError: two of them contradict each other.
    """
    read = []
    for name, place in LIST_VARIABLES.items():
        ops = tuple(filter(None, map(str.strip, texts.get(name, "").split(","))))
        read += [ListEdit(*place, ops, name)] if ops else []
    return checked_edits(tuple(read))


def edits_from_mapping(
    lists: Mapping[str, Mapping[str, Iterable[str]]],
) -> tuple[ListEdit, ...]:
    """Return the edits of `{"add": {"allow": ["MyOp"]}, "remove": {"infer": [...]}}`.

    Raises:
      ConfigError: a key is neither verb nor list, something is not of the type that it
        has above, or two edits contradict each other.
    """
    edits = []
    for verb, by_list in _items(lists, "lists", VERBS):
        asked_by = f"lists[{verb!r}]"
        for list_name, ops in _items(by_list, asked_by, LISTS):
            key = f"{asked_by}[{list_name!r}]"
            several = (ops,) if isinstance(ops, str) else ops
            if not isinstance(several, Iterable):
                raise _list_refusal(key, several, "names of ops")
            names = tuple(several)
            for op in names:
                if not isinstance(op, str):
                    raise _list_refusal(key, op, "names of ops")
            edits.append(ListEdit(verb, list_name, names, asked_by))
    return checked_edits(tuple(edits))


def env_from_edits(edits: Iterable[ListEdit]) -> dict[str, str]:
    """Return variables from which `edits_from_env` reads the same ops for each list."""
    names = {key: name for name, key in reversed(LIST_VARIABLES.items())}
    ops: dict[str, list[str]] = {}
    for edit in edits:
        ops.setdefault(names[edit.verb, edit.list_name], []).extend(edit.ops)
    return {name: ",".join(dict.fromkeys(listed)) for name, listed in ops.items()}


def checked_edits(edits: tuple[ListEdit, ...]) -> tuple[ListEdit, ...]:
    """Return the edits, or raise ConfigError where one op is sent to two places."""
    destination: dict[str, ListEdit] = {}
    for edit in edits:
        for op in edit.ops if edit.verb == "add" else ():
            other = destination.setdefault(op, edit)
            if other.list_name != edit.list_name:
                raise ConfigError(
                    f"{other.asked_by} adds {op} to the {other.list_name} list and "
                    f"{edit.asked_by} to the {edit.list_name} list; an op is in one "
                    "list."
                )
    for edit in edits:
        for op in edit.ops if edit.verb == "remove" else ():
            added = destination.get(op)
            if added and added.list_name == edit.list_name:
                raise ConfigError(
                    f"{added.asked_by} adds {op} to the {edit.list_name} list and "
                    f"{edit.asked_by} removes it from there; keep one of them."
                )
    return edits


def _items(
    lists: object, name: str, known: tuple[str, ...]
) -> Iterable[tuple[str, object]]:
    """Return the items of a mapping whose keys are all known, or raise ConfigError."""
    keys = ", ".join(known)
    if not isinstance(lists, Mapping):
        raise _list_refusal(name, lists, f"mappings with the keys {keys}")
    for key in lists:
        if key not in known:
            raise _list_refusal(name, key, f"the keys {keys}")
    return lists.items()


def _list_refusal(name: str, received: object, allowed: str) -> ConfigError:
    return refusal(
        name, received, f'are {allowed}, as in lists={{"add": {{"allow": ["MatMul"]}}}}'
    )
