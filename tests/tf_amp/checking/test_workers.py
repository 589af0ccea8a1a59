"""Of workers that train in step the chief checks kernels for all."""

from __future__ import annotations

from tensorflow.core.framework.graph_pb2 import GraphDef

from tf_amp.checking.known import CheckedKernels, KnownKernels
from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.peers import Peers
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


def test_the_chief_checks_what_all_of_them_run(monkeypatch) -> None:
    joint = graph("MatMul", "CollectiveReduceV2")
    assert isinstance(kernels_at(CHIEF, joint, monkeypatch), CheckedKernels)


def test_the_others_take_its_plan_and_know_the_table_alone(monkeypatch) -> None:
    kernels = kernels_at(OTHER, graph("CollectiveReduceV2"), monkeypatch)
    assert not isinstance(kernels, CheckedKernels)
    assert kernels.machines and not kernels.outcomes


def test_what_a_worker_runs_by_itself_it_checks_itself(monkeypatch) -> None:
    own = kernels_at(OTHER, graph("MatMul"), monkeypatch)
    assert isinstance(own, CheckedKernels) and own.outcomes
