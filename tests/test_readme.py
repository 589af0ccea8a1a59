"""The README's samples run, and print what it says they print.

python -m tests.test_readme      writes what they print now into the README
"""

from __future__ import annotations

import re

from benchmarks import first_step, memory, speed_chart
from evidence import page as evidence_page
from tests.forking import run_forked
from tests.processes import ROOT

README = ROOT / "README.md"
LONGEST = 200

# A python block, and the text block that follows it unless another python block does.
SAMPLE = re.compile(
    r"```python\n(?P<code>.*?)```(?:(?:(?!```).)*?```text\n(?P<output>.*?)```)?", re.S
)


def output_of(code: str) -> str:
    """Run a sample, as if it were a file, and return what it prints."""
    # More epochs are for measuring.
    code = code.replace("epochs=3", "epochs=1")
    done = run_forked(f"exec(compile({code!r}, 'plan.py', 'exec'))")
    done.lines()
    # A setting that does nothing is no sample.
    assert "(AMP11" not in done.err, done.err
    return done.out


def with_fresh_outputs(readme: str) -> str:
    """Return the README with what its samples print now."""

    def refreshed(sample: re.Match[str]) -> str:
        if sample["output"] is None:
            return sample[0]
        start, end = (at - sample.start() for at in sample.span("output"))
        return sample[0][:start] + output_of(sample["code"]) + sample[0][end:]

    return SAMPLE.sub(refreshed, readme)


def test_the_samples_run_and_print_what_the_readme_says() -> None:
    samples = list(SAMPLE.finditer(README.read_text()))
    assert len(samples) == 3
    assert samples[1]["output"]
    for sample in samples:
        printed = output_of(sample["code"])
        assert printed == (sample["output"] or ""), "run: python -m tests.test_readme"


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= LONGEST


def test_its_figures_are_those_that_were_measured() -> None:
    readme = README.read_text()
    assert speed_chart.caption() in readme
    assert evidence_page.caption() in readme
    assert first_step.caption() in readme
    for page in (readme, (ROOT / "docs/costs.md").read_text()):
        assert memory.comparison() in page


if __name__ == "__main__":
    README.write_text(with_fresh_outputs(README.read_text()))
