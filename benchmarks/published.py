"""Predicted against published speed-ups: ``python -m benchmarks.published``.

Training steps of models with published figures for one V100 are built as graphs,
planned with the profile of the V100 in float16 by the lists that the figures were
obtained with, and priced; nothing is executed. Where they were obtained with XLA, its
fusion is estimated on top of the plan.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from rich.progress import Progress

from benchmarks.as_published import ListedTarget, layout_seconds
from benchmarks.fused_estimate import fused_seconds
from benchmarks.published_report import Comparison, markdown
from benchmarks.results import publish
from benchmarks.training_graphs import (
    attention,
    convolutional,
    detection,
    others,
    recommender,
)
from benchmarks.training_graphs.words import Step
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Draft
from tf_amp.tools import audit as auditing
from tf_amp.tools import target_device

DEVICE, DTYPE = "v100", "float16"
_NVIDIA = "NVIDIA DeepLearningExamples, TensorFlow"


@dataclass(frozen=True)
class Case:
    """A published figure and the graphs that stand for it.

    Attributes:
        name: of the model.
        float32: items per step in float32, and the graph's maker.
        mixed: the same in mixed precision, where the batch may be larger.
        published: speed-up in items per second.
        throughputs: published items per second, float32 and mixed; empty where they
            were not.
        xla: whether XLA was on.
        source: of the figures.
        host: seconds per step that the device waits for its host, in either precision.
    """

    name: str
    float32: tuple[int, Callable[[], Step]]
    mixed: tuple[int, Callable[[], Step]]
    published: float
    throughputs: tuple[float, ...]
    xla: bool
    source: str
    host: float = 0.0


def _case(
    name: str,
    batches: tuple[int, int],
    build: Callable[..., Step],
    published: tuple[float, ...],
    *,
    xla: bool,
    source: str,
    items: int = 1,
    host: float = 0.0,
) -> Case:
    """Return a case whose graphs differ in batch size, and in loss scaling."""
    float32, mixed = batches
    ratio, *throughputs = published
    return Case(
        name=name,
        float32=(float32 * items, partial(build, float32)),
        mixed=(mixed * items, partial(build, mixed, scaled=True)),
        published=ratio,
        throughputs=tuple(throughputs),
        xla=xla,
        source=source,
        host=host,
    )


# Constants of the profile that come from other measurements of a model of the table.
_DERIVED = {
    "ResNet-50 v1.5": "bandwidth in float16",
    "Transformer-XL base": "ops that a host starts",
}

# What the host of wide & deep takes: as much as it allows eight GPUs to go through, in
# either precision, and what it has looked up over PCIe 3.0 with 16 lanes, and back.
_WIDE_DEEP_BATCH = 131_072
_WIDE_DEEP_HOST = _WIDE_DEEP_BATCH * (
    1 / 472_143 + 2 * 4 * sum(recommender.WIDTHS) / (0.8 * 15.75e9)
)

CASES = (
    _case(
        "ResNet-50 v1.5",
        (128, 256),
        convolutional.resnet50,
        (3.08, 412, 1270),
        xla=True,
        source=f"{_NVIDIA}, ResNet-50 v1.5, DGX-1, images",
    ),
    _case(
        "ResNeXt-101 32x4d",
        (64, 128),
        convolutional.resnext101,
        (3.40, 166, 566),
        xla=True,
        source=f"{_NVIDIA}, ResNeXt-101 32x4d, DGX-1, images",
    ),
    _case(
        "BERT-large, 128",
        (8, 16),
        partial(attention.bert_large, length=128, guessed=20),
        (3.41, 39.43, 134.34),
        xla=True,
        source=f"{_NVIDIA}, BERT, pretraining on DGX-1, sentences",
    ),
    _case(
        "BERT-large, 512",
        (2, 4),
        partial(attention.bert_large, length=512, guessed=80),
        (2.93, 9.80, 28.72),
        xla=True,
        source=f"{_NVIDIA}, BERT, pretraining on DGX-1, sentences",
    ),
    _case(
        "Transformer-XL base",
        (16, 16),
        attention.transformer_xl,
        (1.43, 9104, 13004),
        xla=False,
        source=f"{_NVIDIA}, Transformer-XL, DGX-1, tokens",
        items=192,
    ),
    _case(
        "GNMT",
        (128, 128),
        partial(others.gnmt, length=28),
        (1.63, 14106, 23011),
        xla=False,
        source=f"{_NVIDIA}, GNMT v2, DGX-1, tokens of both languages, 48 a pair of "
        "sentences, padded to 28 each",
        items=48,
    ),
    _case(
        "U-Net medical, 8",
        (8, 8),
        convolutional.unet,
        (3.20, 18.85, 60.28),
        xla=True,
        source=f"{_NVIDIA}, U-Net Medical, DGX-1, images",
    ),
    _case(
        "U-Net medical, 1",
        (1, 1),
        convolutional.unet,
        (2.52, 15.70, 39.62),
        xla=True,
        source=f"{_NVIDIA}, U-Net Medical, DGX-1, images",
    ),
    _case(
        "NCF",
        (1 << 20, 1 << 20),
        others.ncf,
        (1.56, 9_255_160, 14_913_842),
        xla=False,
        source=f"{_NVIDIA}, NCF, DGX-1, samples",
    ),
    _case(
        "SSD320",
        (32, 32),
        detection.ssd320,
        (1.51, 87.87, 124.97),
        xla=False,
        source=f"{_NVIDIA}, SSD320 v1.2, DGX-1, images; 1.42 in the edition whose "
        "rates are shown",
    ),
    _case(
        "wide & deep",
        (_WIDE_DEEP_BATCH, _WIDE_DEEP_BATCH),
        recommender.wide_deep,
        (1.49, 180_561, 257_995),
        xla=False,
        source=f"{_NVIDIA}, Wide & Deep, DGX-1, samples; 1.43 in the edition whose "
        "rates are shown",
        host=_WIDE_DEEP_HOST,
    ),
    _case(
        "Transformer, width 512",
        (128, 128),
        partial(attention.translation, length=32, width=512),
        (1.6,),
        xla=False,
        source="PAI's automatic mixed precision; batch unpublished, 4096 tokens taken",
    ),
    _case(
        "Transformer, width 1024",
        (128, 128),
        partial(attention.translation, length=32, width=1024),
        (2.1,),
        xla=False,
        source="PAI's automatic mixed precision; batch unpublished, 4096 tokens taken",
    ),
)


def compare(case: Case) -> Comparison:
    """Return what is predicted for a case beside what was published."""
    items_float32, build_float32 = case.float32
    items_mixed, build_mixed = case.mixed
    step = build_mixed()
    own = planned_draft(step)
    in_float32, in_mixed, in_own = (
        case.host + _seconds(draft, xla=case.xla, mixed=mixed)
        for draft, mixed in (
            (planned_draft(build_float32(), listed=True), False),
            (planned_draft(step, listed=True), True),
            (own, True),
        )
    )
    return Comparison(
        name=case.name,
        items=(items_float32, items_mixed),
        published=case.published,
        throughputs=case.throughputs,
        seconds=(in_float32, in_mixed),
        own_seconds=in_own,
        rewrites=len(own.fusions),
        xla=case.xla,
        host=case.host,
        source=case.source,
        derived=_DERIVED.get(case.name, ""),
    )


def planned_draft(step: Step, *, listed: bool = False) -> Draft:
    """Return the planned draft of a step of training.

    Args:
        step: to plan.
        listed: by the lists that published figures were obtained with; else as tf-amp
            plans it.
    """
    target = target_device.target_of(DEVICE, DTYPE)
    if listed:
        target = ListedTarget(target.profile, target.low_dtype)
    graph_def = target.optimized(step.graph_def, step.fetches)
    return auditing.planned(
        graph_def,
        Item(fetch=step.fetches),
        target,
        shapes=lambda: shapes_from_graph_def(graph_def),
        name="step",
    )


def _seconds(draft: Draft, *, xla: bool, mixed: bool) -> float:
    if xla:
        roofline = draft.settings.models["CPU"].profile.roofline
        return fused_seconds(draft, roofline, mixed=mixed)
    if not mixed:
        return draft.plan.seconds_before
    return draft.plan.seconds_after + layout_seconds(draft)


def main() -> None:
    """Predict, print, and write the section of RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published")
    names = tuple(case.name for case in CASES)
    parser.add_argument("--only", choices=names, help="one model, written nowhere")
    options = parser.parse_args()
    chosen = [case for case in CASES if options.only in (None, case.name)]
    found = []
    with Progress(transient=True) as progress:
        task = progress.add_task("", total=len(chosen))
        for case in chosen:
            progress.update(task, description=case.name)
            found.append(compare(case))
            progress.advance(task)
    publish(
        "published",
        markdown(found),
        [asdict(each) for each in found],
        is_whole=options.only is None,
    )


if __name__ == "__main__":
    main()
