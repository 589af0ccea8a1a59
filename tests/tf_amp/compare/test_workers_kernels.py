"""Of workers that train in step the chief checks kernels for all."""

from __future__ import annotations

import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef

from tf_amp.compare.known_kernels import KnownKernels
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.workers import Peers
from tf_amp.rewriting import graph_settings

CHIEF, OTHER = "worker 0", "worker 1"


def graph(*ops: str) -> GraphDef:
    graph_def = GraphDef()
    for op in ops:
        graph_def.node.add(name=op, op=op)
    return graph_def


def kernels_at(own: str, graph_def: GraphDef, monkeypatch) -> KnownKernels:
    others = tuple(name for name in (CHIEF, OTHER) if name != own)
    monkeypatch.setattr(graph_settings, "peers", lambda: Peers(own, others, CHIEF))
    config = AmpConfig()
    chosen = graph_settings.settings_from_config(config, "CPU")
    kernels = graph_settings.with_checks(chosen, config, graph_def).kernels
    assert isinstance(kernels, KnownKernels)
    return kernels


@pytest.mark.parametrize(
    ("own", "ops", "checks"),
    [
        (CHIEF, ("MatMul", "CollectiveReduceV2"), True),
        # The others take its plan and know the table alone.
        (OTHER, ("CollectiveReduceV2",), False),
        # What a worker runs by itself it checks itself.
        (OTHER, ("MatMul",), True),
    ],
)
def test_the_chief_checks_what_all_of_them_run(own, ops, checks, monkeypatch) -> None:
    kernels = kernels_at(own, graph(*ops), monkeypatch)
    assert kernels.machines
    assert (kernels.limits is not None) == bool(kernels.outcomes) == checks
