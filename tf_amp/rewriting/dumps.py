"""Logs of plans: the folder of `TF_AMP_LOG`, and collectors of this process.

    DIR/<process>-<number>-<function>.before.pbtxt  .after.pbtxt  .plan.txt  .plan.json
                                      .before.pbtxt  .error.txt, where it fails
                                      .steps.json, where its steps have been compared

Each file is written whole or not at all, whenever the process is killed.
Logged is every graph traced under settings that rewrite, also one that stays as it is.
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
from tf_amp.report import codec
from tf_amp.report.counts import counted

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.graph.view import Item
    from grappler_pass.pipeline import Rewrite, Settings
    from grappler_pass.planning.plan import Plan

# One for each file, of whatever graph and settings.
_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class ComparedSteps:
    """How steps that ran both ways have decided on the plan of a graph."""

    graph: str
    is_faster: bool
    ratio: float
    pairs: int

    def __str__(self) -> str:
        """Say what was measured, and what has become of the plan."""
        stays = "it stays" if self.is_faster else "float32 stays"
        return (
            f"steps have been compared: {self.ratio:.2f}x as fast as float32 in "
            f"{counted(self.pairs, 'pair')}, so that {stays}"
        )


@dataclasses.dataclass(frozen=True)
class Collector:
    """Keeps the plans of this process, and what steps have decided on them since.

    The folder is where child processes write theirs; this one need not.
    """

    folder: pathlib.Path | None = None
    plans: list[Plan] = dataclasses.field(default_factory=list)
    compared: list[ComparedSteps] = dataclasses.field(default_factory=list)
    process: int = dataclasses.field(default_factory=os.getpid)

    def stands_for(self, folder: pathlib.Path) -> bool:
        """Return whether plans need not be written into a folder by this process."""
        return folder == self.folder and os.getpid() == self.process

    def add(self, name: str, before: GraphDef, rewrite: Rewrite) -> None:
        """Keep a plan."""
        if rewrite.plan is not None:
            self.plans.append(rewrite.plan)

    def add_steps(self, compared: ComparedSteps) -> None:
        """Keep what steps have decided."""
        self.compared.append(compared)


@dataclasses.dataclass(frozen=True)
class FolderLog:
    """Writes plans, with graphs before and after, into a folder.

    Attributes:
      folder: made if it is not there.
      is_said: whether a line says that it was made.
    """

    folder: pathlib.Path
    is_said: bool = False

    def add(self, name: str, before: GraphDef, rewrite: Rewrite) -> None:
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
        self._write(name, texts)

    def add_steps(self, compared: ComparedSteps) -> None:
        """Write how steps that ran both ways have decided on a graph's plan."""
        text = json.dumps(codec.plain(compared))
        self._write(compared.graph, {"steps.json": lambda: text})

    def add_failed(
        self, name: str, before: Callable[[], GraphDef], error: Exception
    ) -> None:
        """Write one graph, and what has failed in its rewrite."""
        self._write(
            name,
            {
                "before.pbtxt": lambda: str(before()),
                "error.txt": lambda: "".join(traceback.format_exception(error)),
            },
        )

    def _write(self, name: str, texts: Mapping[str, Callable[[], str]]) -> None:
        name = re.sub(r"[^\w.-]+", "_", name)[:80] or "graph"
        stem = f"{os.getpid()}-{next(_numbers):04d}-{name}"
        try:
            is_new = not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            for suffix, text in texts.items():
                with replacing(self.folder / f"{stem}.{suffix}") as file:
                    file.write(text())
            if is_new and self.is_said:
                where = f"the folder {self.folder}, which is new"
                Code.NEW_FOLDER.say(f"graphs and their plans are written to {where}")
        except OSError as error:
            Code.NOT_WRITTEN.warn_once(
                "TF_AMP_LOG: cannot write to %s: %s", self.folder, error
            )


PlanLog = Collector | FolderLog


def unplanned(name: str, graph: GraphDef, item: Item, settings: Settings) -> Rewrite:
    """Return the plan of a graph without any op that starts low precision.

    It says for each slot why it stays float32; the graph is left alone.
    """
    from grappler_pass.pipeline import Rewrite, draft_graph

    # Where lists count, since it is by them that the graph was left alone.
    listed = dataclasses.replace(settings, opt_level="O2", own_steps=None, memory=None)
    plan = draft_graph(graph, item, listed, shapes=dict, name=name).plan
    plan = dataclasses.replace(plan, opt_level=settings.opt_level)
    return Rewrite(graph, plan, changed=False)
