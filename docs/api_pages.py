"""Writes a page of the API reference for each public name, as the site is built.

`mkdocs.yml` names this file as a hook. Names are those of each package's `__all__`;
the index of the reference lists them with the first sentence of their docstrings.
"""

from __future__ import annotations

import functools
from typing import Any

import griffe
from mkdocs.structure.files import File

PACKAGES = ("tf_amp", "keras_callbacks", "tf_amp.block_sparse", "tf_amp.placement")
INDEX = "api.md"
_PAGE = "::: {name}\n    options:\n      heading_level: 1\n"


@functools.cache
def names_of(package: str) -> dict[str, str]:
    """Return the public names of a package, each with what it is in a sentence."""
    module = _modules()[package.partition(".")[0]]
    for part in package.split(".")[1:]:
        module = module[part]
    found = {}
    for name in sorted(module.exports or (), key=str.lower):
        target = module[str(name)]
        target = target.final_target if target.is_alias else target
        if target.is_attribute:
            # Another name of a function: `init = enable`.
            found[str(name)] = f"Another name of `{target.value}`."
        else:
            text = target.docstring.value if target.docstring else ""
            found[str(name)] = " ".join(text.partition("\n\n")[0].split())
    return found


@functools.cache
def _modules() -> Any:
    """Return the packages of the project, read and not imported."""
    loader = griffe.GriffeLoader(search_paths=["."])
    for name in ("grappler_pass", "tf_amp", "keras_callbacks"):
        loader.load(name)
    loader.resolve_aliases()
    return loader.modules_collection


def _is_page(sentence: str) -> bool:
    return not sentence.startswith("Another name of ")


def _path(package: str, name: str) -> str:
    return f"api/{package}.{name}.md"


def on_config(config: Any) -> Any:
    """Put the pages below the index in the navigation."""
    packages = [
        {p: [{n: _path(p, n)} for n, text in names_of(p).items() if _is_page(text)]}
        for p in PACKAGES
    ]
    for section in config.nav:
        for pages in section.values():
            if INDEX in pages:
                pages[pages.index(INDEX)] = {"API reference": [INDEX, *packages]}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each name."""
    for package in PACKAGES:
        for name, sentence in names_of(package).items():
            if _is_page(sentence):
                content = _PAGE.format(name=f"{package}.{name}")
                path = _path(package, name)
                files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """List the names of each package on the index."""
    if page.file.src_uri != INDEX:
        return markdown
    parts = [markdown]
    for package in PACKAGES:
        rows = [
            f"| [`{name}`]({_path(package, name)}) | {sentence} |"
            if _is_page(sentence)
            else f"| `{name}` | {sentence} |"
            for name, sentence in names_of(package).items()
        ]
        parts += ["", f"## {package}", "", "| name | what it is |", "|---|---|", *rows]
    return "\n".join(parts)
