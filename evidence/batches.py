"""Methods by batch sizes, as they were published: ``python -m evidence.batches``.

Charts of `tf-amp bench` for docs/evidence.md, whose samples stay in evidence/raw.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import markdown_table
from evidence.records import RAW, ROOT

# Models of the articles, and batches from what is served to what is trained.
BATCHES = {
    "resnet50": ("ResNet-50", "1,4,16"),
    "bert": ("BERT-like encoder", "1,4,16"),
    "transformer": ("Transformer", "4,16,64"),
    "wide_deep": ("wide & deep", "64,512,4096"),
}
FOLDER = RAW / "batches"
CHARTS = ROOT / "docs" / "evidence"
_HEAD = """## Methods by batch sizes

Training steps, as `python -m evidence.batches` has `tf-amp bench` measure them in fresh
processes by turns: speed-up over float32, median, lowest and highest round. *float32
again* is the noise."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=(*BATCHES, []), default=[])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for model in options.models or BATCHES:
        subprocess.run(command(model, options.rounds), cwd=ROOT, check=True)


def command(model: str, rounds: int) -> list[str]:
    """Return the command that measures a model."""
    words = f"evidence.batch_steps:{model} --step-seconds 1 --rounds {rounds}".split()
    outputs = f"--json {FOLDER / model}.json --png {_chart(model)}".split()
    launcher = str(pathlib.Path(sys.executable).with_name("tf-amp"))
    which = ("--methods", "all", "--batches", BATCHES[model][1])
    return [launcher, "bench", *words, *which, *outputs]


def section() -> str:
    """Return the charts of the models that are kept, each with its figures."""
    parts = [_HEAD]
    for model, (title, _) in BATCHES.items():
        path = FOLDER / f"{model}.json"
        if path.exists():
            chart = f"![{title} by batch sizes]({CHARTS.name}/{_chart(model).name})"
            parts += [f"### {title}", chart, _figures(json.loads(path.read_text()))]
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _figures(kept: Mapping[str, Any]) -> str:
    """Return a table of speed-ups over float32, a row per batch size."""
    rows = kept["summary"]
    methods = tuple(dict.fromkeys(row["method"] for row in rows))[1:]
    by_batch: dict[int, dict[str, str]] = {}
    for row in rows:
        by_batch.setdefault(row["batch"], {})[row["method"]] = _cell(row)
    cells = (
        (str(batch), *(found.get(method, "-") for method in methods))
        for batch, found in by_batch.items()
    )
    context = kept["context"]
    where = f"{context['processor']}; {context['date']}, {context['revision']}."
    return f"{markdown_table(('batch', *methods), cells)}\n\n{where}"


def _cell(row: Mapping[str, Any]) -> str:
    speed_up = row["speed_up"]
    if speed_up is None:
        return "-"
    return "{median:.2f} ({lowest:.2f}-{highest:.2f})".format(**speed_up)


def _chart(model: str) -> pathlib.Path:
    return CHARTS / f"batches_{model}.png"


if __name__ == "__main__":
    main()
