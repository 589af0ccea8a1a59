"""Make a notebook of each tutorial while mkdocs builds the site.

The page is the only source. Its blocks of Python and bash become cells. A block of text
becomes the output of the cell above it. A link to another page becomes plain words.
"""

from __future__ import annotations

import pathlib
import re

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

_BLOCK = re.compile(r"^```(python|bash|text)\n(.*?)^```\n", re.M | re.S)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\.md[^)]*\)")


def notebook_of(page: pathlib.Path) -> nbformat.NotebookNode:
    """Return a tutorial as a notebook, with the outputs that the page shows."""
    prose, *blocks = _BLOCK.split(page.read_text(encoding="utf-8"))
    cells = [new_markdown_cell(_LINK.sub(r"\1", prose).strip())]
    for kind, block, after in zip(*[iter(blocks)] * 3, strict=True):
        if kind == "text":
            cells[-1].outputs = [new_output("stream", text=block)]
        else:
            # `%pip` installs where the notebook runs, whatever the shell would take.
            shell = "%" if block.startswith("pip ") else "%%bash\n"
            magic = shell if kind == "bash" else ""
            cells.append(new_code_cell(magic + block.strip()))
        if after.strip():
            cells.append(new_markdown_cell(_LINK.sub(r"\1", after).strip()))
    # Numbers instead of random names, so that a notebook changes only with its page.
    for number, cell in enumerate(cells):
        cell.id = str(number)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a notebook beside each tutorial."""
    for page in [file for file in files if _is_tutorial(file)]:
        content = nbformat.writes(notebook_of(pathlib.Path(page.abs_src_path or "")))
        uri = page.src_uri.replace(".md", ".ipynb")
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Offer the notebook below the title of a tutorial."""
    if not _is_tutorial(page.file):
        return markdown
    title, _, rest = markdown.partition("\n")
    notebook = pathlib.PurePosixPath(page.file.src_uri).with_suffix(".ipynb").name
    return f"{title}\n\n[Download this tutorial as a notebook]({notebook})\n{rest}"


def _is_tutorial(file: File) -> bool:
    return file.src_uri.startswith("tutorials/") and file.src_uri.endswith(".md")
