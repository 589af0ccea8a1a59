"""Dumps for `TF_AMP_LOG`: each graph before and after, and its plan.

    DIR/<process>-<number>-<function>.before.pbtxt  .after.pbtxt  .plan.txt  .plan.json
                                      .before.pbtxt  .error.txt, where it fails
                                      .steps.json, where its steps have been compared

Each file is written whole or not at all, whenever the process is killed.
Written is every graph traced under settings that rewrite, also one that stays as it is.
What `tf.data` traces is not, nor what is traced at O0 or while mixed precision is off.
A folder that cannot be written costs one warning, never a rewrite.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import re
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from grappler_pass.costs.atomic_file import replacing
from tf_amp.message_codes import Code

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.view import Item
    from grappler_pass.pipeline import Rewrite, Settings
    from tf_amp.compare.alternation import Verdict

# One for each file, of whatever graph and settings.
_numbers = itertools.count(1)


def dump(folder: pathlib.Path, name: str, before: GraphDef, rewrite: Rewrite) -> None:
    """Write one graph before and, where it changed, after; and its plan."""
    plan = rewrite.plan
    if plan is None:
        return
    texts: dict[str, Callable[[], str]] = {
        "before.pbtxt": lambda: str(before),
        "plan.txt": lambda: f"{plan}\n",
        "plan.json": plan.to_json,
    }
    if rewrite.changed:
        texts["after.pbtxt"] = lambda: str(rewrite.graph_def)
    _write(folder, name, texts)


def dump_steps(
    folder: pathlib.Path, name: str, is_faster: bool, compared: Verdict
) -> None:
    """Write how steps that ran both ways have decided on a graph's plan."""
    fields = {
        "graph": name,
        "is_faster": is_faster,
        "ratio": compared.ratio,
        "pairs": len(compared.pairs),
    }
    _write(folder, name, {"steps.json": lambda: json.dumps(fields)})


def dump_failed(
    folder: pathlib.Path, name: str, before: Callable[[], GraphDef], error: Exception
) -> None:
    """Write one graph, and what has failed in its rewrite."""
    _write(
        folder,
        name,
        {
            "before.pbtxt": lambda: str(before()),
            "error.txt": lambda: "".join(traceback.format_exception(error)),
        },
    )


def dump_unplanned(
    folder: pathlib.Path, name: str, graph: GraphDef, item: Item, settings: Settings
) -> None:
    """Write a graph that is left alone, since no op in it starts low precision.

    Its plan says for each slot why it stays float32.
    """
    from grappler_pass.pipeline import Rewrite, plan_graph

    # Where lists count, since it is by them that the graph was left alone.
    listed = dataclasses.replace(settings, opt_level="O2", own_steps=None, memory=None)
    plan = plan_graph(graph, item, listed, shapes=dict, name=name)
    plan = dataclasses.replace(plan, opt_level=settings.opt_level)
    dump(folder, name, graph, Rewrite(graph, plan, changed=False))


def _write(
    folder: pathlib.Path, name: str, texts: Mapping[str, Callable[[], str]]
) -> None:
    stem = f"{os.getpid()}-{next(_numbers):04d}-{_file_name(name)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in texts.items():
            with replacing(folder / f"{stem}.{suffix}") as file:
                file.write(text())
    except OSError as error:
        Code.NOT_WRITTEN.warn_once(
            "TF_AMP_LOG: cannot write to %s: %s",
            folder,
            error,
        )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)[:80] or "graph"
