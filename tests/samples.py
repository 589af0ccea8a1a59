"""Run graphs on many samples of a program's values, each graph once per sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from tests.programs import plain_session_config, with_state
from tests.recipes import Dish

Results = list[np.ndarray]


class Samples:
    """The results of graphs that stand for one program."""

    def __init__(self, dish: Dish) -> None:
        """Take the program whose values are drawn."""
        self._dish = dish
        self._known: dict[tuple[bytes, range, bool], list[Results]] = {}

    def results(
        self, graph_def: GraphDef, samples: range, *, again: bool = False
    ) -> list[Results]:
        """Return for each sample the fetches of every step, then the state.

        Args:
          graph_def: names of fetches and variables are the program's.
          samples: numbers of the samples.
          again: whether of a second run.
        """
        key = (graph_def.SerializeToString(deterministic=True), samples, again)
        if key not in self._known:
            program = self._dish.program
            whole = with_state(graph_def, program, program.graph_def)
            for node in whole.node:
                # Half the time of an import; where TensorFlow puts it, it was captured.
                node.ClearField("device")
            self._known[key] = list(self._run(whole, samples))
        return self._known[key]

    def _run(self, graph_def: GraphDef, samples: range) -> Iterator[Results]:
        program = self._dish.program
        config = plain_session_config()
        config.intra_op_parallelism_threads = 1
        config.inter_op_parallelism_threads = 1
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(graph_def, name="")
        wanted = [list(program.fetches), list(program.targets)]
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            for sample in map(self._dish.sample, samples):
                session.run(list(program.init), dict(sample.initial))
                results: Results = []
                for _ in range(program.steps):
                    results += session.run(wanted, dict(sample.feeds))[0]
                yield results + session.run(list(program.state))

    def roles(self) -> Sequence[str]:
        """Return what the results are, in their order."""
        program = self._dish.program
        steps = range(1, program.steps + 1)
        fetched = [f"{name} in step {i}" for i in steps for name in program.fetches]
        return [*fetched, *(f"{name} at the end" for name in self._dish.variables)]
