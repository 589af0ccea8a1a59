"""What is to be measured: one model, its methods and batch sizes, and every run.

Nothing here imports TensorFlow; the processes that measure do. Digests of what is run
differ once it has been edited: of a script its text, of a module the files that its
import runs by its name, of a SavedModel the files that TensorFlow loads. What a program
imports in turn is not looked at, nor the data it reads.

Behind the method `tf-amp:` stand settings of its own, joined by +: a level, then
variables without their TF_AMP_, such as `tf-amp:O2+TUNE=off`. Each process gets an
environment to match.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.util
import itertools
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder

from tf_amp.config.amp_config import (
    BENCH_BATCH,
    CACHE,
    DEFAULT_LEVEL,
    LEVELS,
    OPT_LEVEL,
    OWN_NAMES,
    OWN_PREFIX,
    SWITCH_PREFIX,
    AmpConfig,
    unknown_settings,
)
from tf_amp.config.setting_values import LIST_PREFIX
from tf_amp.errors import ConfigError, ScriptMissingError, guess_path
from tf_amp.report.codec import Stored

MODES = ("train", "infer")
SCRIPT, FUNCTION, SAVED_MODEL = "script", "function", "saved_model"
BATCH_PLACE = "{batch}"
_CHUNK_BYTES = 2**20
_LOADED = ("saved_model.pb*", "variables/*", "assets/**/*")


@dataclasses.dataclass(frozen=True)
class Program:
    """What is run.

    Attributes:
      kind: SCRIPT, FUNCTION or SAVED_MODEL.
      name: a path that is absolute, or "module:function".
      arguments: of a script, in which BATCH_PLACE stands for the batch size.
      signature: of a SavedModel; None for the one it is served by.
      digest: of its files, so that an edited program is another job; "" where a
        module has none.
    """

    kind: str
    name: str
    arguments: tuple[str, ...] = ()
    signature: str | None = None
    digest: str = ""

    @property
    def title(self) -> str:
        """Its name without folders."""
        return pathlib.PurePath(self.name).name


@dataclasses.dataclass(frozen=True)
class BenchJob:
    """All of what is measured.

    Attributes:
      target: what is run.
      mode: "train" or "infer".
      methods: as on the command line, float32 first and its repetition second.
      batches: examples per step; None where a script has its own.
      seconds: that a process may take.
      step_seconds: for which a step is called that is not a script's.
      is_warm: whether tf-amp uses the user's own cache.
      learns: whether each process of tf-amp that counts follows one that does not,
        which finds no costs and leaves its own.
      settings: environment variables that are tf-amp's.
    """

    target: Program
    mode: str
    methods: tuple[str, ...]
    batches: tuple[int | None, ...]
    seconds: float
    step_seconds: float
    is_warm: bool = False
    learns: bool = False
    settings: tuple[tuple[str, str], ...] = ()

    def runs(self, rounds: int) -> Iterator[Run]:
        """Yield the processes: in each round all batches, methods taking turns.

        Each round starts with the next method.
        """
        for number in range(rounds):
            first = number % len(self.methods)
            for batch in self.batches:
                for method in self.methods[first:] + self.methods[:first]:
                    yield Run(method, batch, number)


@dataclasses.dataclass(frozen=True)
class Run:
    """One process to start; rounds count from 0."""

    method: str
    batch: int | None
    round: int

    def __str__(self) -> str:
        """Return what the progress bar shows."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"round {self.round + 1}{batch}, {self.method}"


def program_of(text: str, arguments: Sequence[str], signature: str | None) -> Program:
    """Return what a command line names; options are to be those of its kind."""
    path = pathlib.Path(text)
    module, _, function = text.partition(":")
    names = (*module.split("."), function)
    if path.is_dir() and not any(path.glob("saved_model.pb*")):
        raise ScriptMissingError(f"{text} does not hold a SavedModel.")
    if path.is_dir():
        kind, name = SAVED_MODEL, str(path.resolve())
        digest = digest_of_saved_model(path)
    elif path.is_file():
        kind, name, digest = SCRIPT, str(path.resolve()), digest_of_file(path)
    elif all(map(str.isidentifier, names)):
        kind, name, digest = FUNCTION, text, digest_of_module(module)
    else:
        raise ScriptMissingError(
            f"{text}: no such script or SavedModel, nor is it MODULE:FUNCTION"
            f"{guess_path(text) or '.'}"
        )
    if signature is not None and kind != SAVED_MODEL:
        raise ConfigError("--signature belongs to SavedModels.")
    if arguments and kind != SCRIPT:
        raise ConfigError("Arguments after `--` belong to scripts.")
    return Program(kind, name, tuple(arguments), signature, digest)


def batches_of(target: Program, text: str | None) -> tuple[int, ...] | tuple[None]:
    """Return the sizes of a list such as "1,8,32", each once; None: defaults.

    A script needs a place for them, and has one of its own by default.
    """
    sizes = []
    for each in ("1,8,32" if text is None else text).split(","):
        if not (each.strip().isdecimal() and int(each) > 0):
            raise ConfigError(
                f"--batches: received {each!r}; allowed are whole numbers of 1 or "
                "more, such as 1,8,32."
            )
        sizes.append(int(each))
    if target.kind == SCRIPT:
        is_placed = any(BATCH_PLACE in each for each in target.arguments)
        if text is None:
            if is_placed:
                raise ConfigError(f"{BATCH_PLACE} in the arguments needs --batches.")
            return (None,)
        program = pathlib.Path(target.name).read_text(errors="replace")
        if not is_placed and BENCH_BATCH not in program:
            raise ConfigError(
                f"--batches: {target.name} has no way to receive a batch size. Put "
                f"{BATCH_PLACE} into its arguments (-- --batch-size {BATCH_PLACE}), "
                f"let it read the environment variable {BENCH_BATCH}, or leave "
                "--batches out."
            )
    return tuple(dict.fromkeys(sizes))


@dataclasses.dataclass(frozen=True)
class Task(Stored):
    """What one process is to do: a run of a job, and the path of its journal.

    Its tensors have no more room than so many mebibytes on each device; None: all.
    """

    job: BenchJob
    run: Run
    journal: str
    mebibytes: int | None = None


def digest_of_file(path: pathlib.Path) -> str:
    """Return the digest of a file's content; ConfigError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def digest_of_module(name: str) -> str:
    """Return the digest of a module's file and of its parents' `__init__`.

    "" where there are none: the module does not exist, or is built in.
    """
    return _digest_of_lines(map(digest_of_file, _files_of_module(name)))


def digest_of_saved_model(folder: pathlib.Path) -> str:
    """Return the digest of a SavedModel's graphs, variables and assets."""
    paths = sorted({path for pattern in _LOADED for path in folder.glob(pattern)})
    return _digest_of_lines(
        f"{digest_of_file(path)} {path.relative_to(folder).as_posix()}"
        for path in paths
        if path.is_file()
    )


def _digest_of_lines(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _files_of_module(name: str) -> Iterator[pathlib.Path]:
    """Yield the files from the outermost package to the module.

    `importlib.util.find_spec` would import the parents; finders of paths look no
    further than at the last part of a name.
    """
    first, *rest = name.split(".")
    # As the worker would find it, for which the present folder comes first.
    spec = PathFinder.find_spec(first, [str(pathlib.Path.cwd()), *sys.path])
    if spec is None:
        # Packages in development may have finders of their own.
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(first)
    while spec is not None:
        if spec.origin is not None and pathlib.Path(spec.origin).is_file():
            yield pathlib.Path(spec.origin)
        if not rest or spec.submodule_search_locations is None:
            return
        spec = PathFinder.find_spec(rest.pop(0), [*spec.submodule_search_locations])


FLOAT32, AGAIN, KERAS, TENSORFLOW, OURS = (
    "float32",
    "float32 again",
    "keras",
    "tensorflow",
    "tf-amp",
)
METHODS = (FLOAT32, KERAS, TENSORFLOW, OURS)
ALL = "all"
# Regular expressions among the values may have a + of their own.
_BEFORE_SETTING = re.compile(r"\+(?=[A-Z_]+=)")
_SMALL_LEVEL = re.compile(rf"(?<=^{OURS}:)o")
# What is measured is the job's, and no method's own.
_SETTINGS = {*OWN_NAMES} - {CACHE}
_PREFIXES = (OWN_PREFIX, SWITCH_PREFIX, LIST_PREFIX)
_ALWAYS = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def methods_from_text(text: str) -> tuple[str, ...]:
    """Return checked methods from a list, with float32 and its repetition in front.

    "all" in it stands for METHODS.
    """
    methods = [FLOAT32, AGAIN]
    words = (
        (word,) if word != ALL else METHODS
        for word in re.split(r"\s*,\s*", text.strip())
    )
    for each in itertools.chain.from_iterable(words):
        method = _SMALL_LEVEL.sub("O", each)
        methods.append(method)
        if method in (*METHODS, AGAIN):
            continue
        settings = settings_of_method(method) if is_ours(method) else {"": ""}
        level = settings.get(OPT_LEVEL, DEFAULT_LEVEL)
        is_known = settings.keys() <= _SETTINGS and level in LEVELS
        if not (is_known and all(settings.values())):
            names = sorted(name.removeprefix(OWN_PREFIX) for name in _SETTINGS)
            raise ConfigError(
                f"--methods: received {each!r}; allowed are {', '.join(METHODS)}, "
                f"{ALL} (these four), and {OURS}:LEVEL+NAME=VALUE, both or one of "
                f"them, with a level of {', '.join(LEVELS)} and names of "
                f"{', '.join(names)}."
            )
        try:
            AmpConfig.from_env(settings)
        except ConfigError as error:
            raise ConfigError(f"--methods: received {each!r}; {error}") from error
    return tuple(dict.fromkeys(methods))


def is_ours(method: str) -> bool:
    """Return whether a method is tf-amp, with whatever settings."""
    return method.partition(":")[0] == OURS


def settings_of_method(method: str) -> dict[str, str]:
    """Return the variables that a method sets, beside the user's own."""
    _, colon, text = method.partition(":")
    parts = _BEFORE_SETTING.split(text) if colon else []
    pairs = (each.partition("=") for each in parts)
    return {
        OWN_PREFIX + name if equals else OPT_LEVEL: value if equals else name
        for name, equals, value in pairs
    }


def settings_of(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that are tf-amp's, in which methods differ, sorted."""
    left_out = {CACHE, BENCH_BATCH, *unknown_settings(environ)}
    return tuple(
        sorted(
            (name, value)
            for name, value in environ.items()
            if name.startswith(_PREFIXES) and name not in left_out
        )
    )


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not tf-amp's."""
    return {n: v for n, v in environ.items() if not n.startswith(_PREFIXES)}


def environment_of(
    job: BenchJob, run: Run, environ: Mapping[str, str], cache: str
) -> dict[str, str]:
    """Return the variables of a run: the user's, but only tf-amp gets tf-amp's.

    Those of the method itself are set in the process. `cache` is a folder for what
    steps show; if warm, the user's own.
    """
    batch = {} if run.batch is None else {BENCH_BATCH: str(run.batch)}
    cache = environ.get(CACHE, "") if job.is_warm else cache
    return {
        **_ALWAYS,
        **without_settings(environ),
        **batch,
        **({CACHE: cache} if cache else {}),
        **(dict(job.settings) if is_ours(run.method) else {}),
    }
