"""Put a record on a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import tf_amp
from grappler_pass.planning.plan import Plan
from tf_amp.report.counts import counted
from tf_amp.report.page import Card, PageTable, Section, page_from_sections
from tf_amp.report.plans import sections_of
from tf_amp.tools.report.record import Record
from tf_amp.tools.report.run_sections import sections_of_runs

_MILLI = 1e3
# Operations whose charts a page has room for, and rows of a table of graphs.
_MOST_NODES, _MOST_PLANS = 12_000, 100
_RATIO = re.compile(r"\d+(\.\d+)?x")


def html_from_record(record: Record, other: Record | None = None) -> str:
    """Return a page that opens without a network, perhaps beside another job.

    It takes Jinja2 and plotly; MissingExtraError without.
    """
    drawn = tuple(_drawn(record.plans))
    sections = [_verdict(record)]
    if other is not None:
        sections.append(_compared(record, other))
    for plan in drawn:
        sections += sections_of(plan, f"{plan.graph}: " if len(drawn) > 1 else "")
    sections += sections_of_runs(record)
    if len(drawn) > 1 or len(record.plans) > len(drawn):
        sections.insert(1, _all_graphs(record, len(drawn)))
    if record.left_out:
        sections.append(Section("Left out", missing=" ".join(record.left_out)))
    note = f"tf-amp {tf_amp.__version__}"
    return page_from_sections(f"Precision of {record.name}", sections, note)


def _drawn(plans: tuple[Plan, ...]) -> Iterator[Plan]:
    """Yield the plans that there is room for, those that take longest first."""
    left = _MOST_NODES
    for plan in plans:
        left -= len({row.slot.node for row in plan.decisions})
        if left < 0 and plan is not plans[0]:
            return
        yield plan


def _verdict(record: Record) -> Section:
    low = sum(not plan.is_empty for plan in record.plans)
    verb = "is" if low == 1 else "are"
    text = f"{low} of {counted(len(record.plans), 'graph')} {verb} rewritten."
    return Section("Job", text, cards=tuple(_cards(record)))


def _cards(record: Record) -> Iterator[Card]:
    for compared in record.compared:
        pairs = counted(compared.pairs, "pair")
        stays = "stays" if compared.is_faster else "float32 was faster"
        yield Card(
            "measured speed-up",
            f"{compared.ratio:.2f}x",
            f"{compared.graph}: {pairs} of steps; {stays}",
        )
    if (state := record.loss_scale) is not None:
        text = f"loss scale {state.scale:g} when the job ended"
        if origin := state.overflow_origin:
            text += f"; the latest overflow began in {origin}"
        yield Card("steps skipped", f"{state.skipped_steps}", text)
    for run in record.runs:
        scale = run["scale"]
        yield Card(
            "steps skipped",
            f"{scale['skipped_here']}",
            f"{run['model']}: loss scale {scale['loss_scale']}, {run['outcome']} after "
            f"{counted(run['epochs'], 'epoch')}",
        )
        if run["comparison"]:
            ratio = _RATIO.search(run["comparison"])
            value = ratio[0] if ratio else "compared"
            yield Card("measured speed-up", value, run["comparison"])
        if times := run.get("step_times"):
            yield _step_card(run["model"], times)


def _step_card(model: str, times: Mapping[str, float]) -> Card:
    """Show what StepTimeMonitor has measured."""
    note = f"{model}: median of the last epoch"
    if "step_ms_p95" in times:
        note += f"; 95 of 100 take less than {times['step_ms_p95']:.3g} ms"
    if "examples_per_second" in times:
        note += f"; {times['examples_per_second']:.3g} examples per second"
    return Card("measured step", f"{times['step_ms_median']:.3g} ms", note)


def _all_graphs(record: Record, drawn: int) -> Section:
    rows = tuple(
        (
            plan.graph,
            plan.low_dtype if not plan.is_empty else "float32",
            float(f"{plan.seconds_before * _MILLI:.3g}"),
            float(f"{plan.seconds_after * _MILLI:.3g}"),
            plan.speedup_text,
            plan.summary(),
        )
        for plan in record.plans[:_MOST_PLANS]
    )
    return Section(
        "Graphs",
        f"{len(record.plans)} graphs, the slowest first; the first {drawn} of them are "
        "drawn below.",
        table=PageTable(
            ("graph", "type", "float32 ms", "planned ms", "speed-up", "plan"), rows
        ),
    )


def _compared(record: Record, other: Record) -> Section:
    """Show for graphs of the same name what has changed from the other job."""
    before = {plan.graph: plan for plan in reversed(other.plans)}
    rows = []
    for plan in record.plans[:_MOST_PLANS]:
        old = before.get(plan.graph)
        if old is None:
            rows.append((plan.graph, "-", _speed(plan), "not in the other job"))
            continue
        rows.append((plan.graph, _speed(old), _speed(plan), _changes(old, plan)))
    return Section(
        f"Beside {other.name}",
        "Predicted milliseconds per step, and operations whose type differs.",
        table=PageTable(("graph", other.name, record.name, "differences"), tuple(rows)),
    )


def _speed(plan: Plan) -> str:
    return (
        f"{plan.seconds_before * _MILLI:.3g} to {plan.seconds_after * _MILLI:.3g} ms "
        f"({plan.speedup_text})"
    )


def _changes(old: Plan, new: Plan) -> str:
    types = {row.slot: row.dtype for row in old.decisions}
    if not any(row.slot in types for row in new.decisions):
        return "no operation in common"
    changed = [
        f"{row.slot} {types[row.slot]} to {row.dtype}"
        for row in new.decisions
        if types.get(row.slot, row.dtype) != row.dtype
    ]
    shown = ", ".join(changed[:5])
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    return shown + more if changed else "none"
