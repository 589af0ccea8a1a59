"""Dumps for `TF_AMP_LOG`: each graph before and after, and its plan.

    DIR/<process>-<number>-<function>.before.pbtxt  .after.pbtxt  .plan.txt  .plan.json

A folder that cannot be written costs one warning, never a rewrite.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from absl import logging

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.pipeline import Rewrite

_numbers = itertools.count(1)


def dump(folder: pathlib.Path, name: str, before: GraphDef, rewrite: Rewrite) -> None:
    """Write one graph before and, where it changed, after; and its plan."""
    if rewrite.plan is None:
        return
    stem = f"{os.getpid()}-{next(_numbers):04d}-{_file_name(name)}"
    texts: dict[str, Callable[[], str]] = {
        "before.pbtxt": lambda: str(before),
        "plan.txt": lambda: f"{rewrite.plan}\n",
        "plan.json": lambda: rewrite.plan.to_json() if rewrite.plan else "",
    }
    if rewrite.changed:
        texts["after.pbtxt"] = lambda: str(rewrite.graph_def)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in texts.items():
            (folder / f"{stem}.{suffix}").write_text(text(), encoding="utf-8")
    except OSError as error:
        logging.log_first_n(
            logging.WARNING, "TF_AMP_LOG: cannot write to %s: %s", 1, folder, error
        )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)[:80] or "graph"
