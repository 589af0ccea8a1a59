"""The example notebook runs, and its cells end with tables."""

from __future__ import annotations

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

from tests.processes import ROOT, sources


@pytest.fixture
def cells(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> list[nbformat.NotebookNode]:
    """Run the notebook with this interpreter, in another folder."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", sources()["PYTHONPATH"])
    notebook = nbformat.read(ROOT / "examples" / "plan.ipynb", as_version=4)
    at = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, resources=at).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_cells_end_with_tables_and_lists_have_a_line_for_each(
    cells: list[nbformat.NotebookNode],
) -> None:
    results = [
        output.data
        for cell in cells
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    pages = [data["text/html"] for data in results if "text/html" in data]
    assert len(pages) == len(results) - 1 == 5
    assert all("<table>" in page and "</td>" in page for page in pages)
    assert "MatMul 4096x1024 matmul</td>" in pages[0]
    listed = next(data["text/plain"] for data in results if "text/html" not in data)
    assert [line[1:15] for line in listed.splitlines()] == ["<Plan classify"] * 2
