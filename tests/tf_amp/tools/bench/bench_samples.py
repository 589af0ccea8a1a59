"""Jobs, samples and records, as a measurement would make them."""

from tf_amp.tools.bench.job import FUNCTION, BenchJob, Program
from tf_amp.tools.bench.journal import OpCounts, Sample
from tf_amp.tools.bench.record import BenchRecord, Context

CONTEXT = Context((("Python", "3"),), "a processor", "", "today")


def job_of(*methods, batches=(8,), mode="train"):
    return BenchJob(
        Program(FUNCTION, "module:function"),
        mode,
        ("float32", "float32 again", *methods),
        batches,
        600.0,
        3.0,
    )


def samples_of(method, seconds, *, values=(1.0, 2.0), low=0, batch=8, total=9):
    """Return a sample for each round, with so many seconds per step."""
    ops = None if low is None else OpCounts(total, low, low, 0)
    return [
        Sample(
            method,
            batch,
            number,
            timed="calls of the step",
            step_seconds=(9.0, 9.0, 9.0, each, each, each),
            first_step_seconds=5.0,
            peak_bytes=3 * 2**20,
            values=tuple(values),
            ops=ops,
        )
        for number, each in enumerate(seconds)
    ]


def record_of(job, *samples):
    return BenchRecord(job, CONTEXT, tuple(each for some in samples for each in some))
