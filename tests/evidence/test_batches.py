"""Methods by batch sizes are measured by `tf-amp bench`, and shown as they are kept."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evidence import batch_steps, batches


@pytest.mark.parametrize("name", ["transformer", "wide_deep"])
def test_each_step_trains_a_batch(name: str) -> None:
    model, x, y = getattr(batch_steps, name)(4)
    assert len(y) == 4
    # To trace it takes longer, and shows nothing else.
    model.run_eagerly = True
    assert np.isfinite(model.train_on_batch(x, y))


def test_every_model_is_one_that_can_be_measured() -> None:
    for model in batches.BATCHES:
        assert callable(getattr(batch_steps, model))
        words = batches.command(model, 3)
        assert f"evidence.batch_steps:{model}" in words
        assert batches.BATCHES[model][1] in words


def test_what_is_kept_is_shown_with_its_chart() -> None:
    section = batches.section()
    kept = sorted(path.stem for path in batches.FOLDER.glob("*.json"))
    for model in kept:
        record = json.loads((batches.FOLDER / f"{model}.json").read_text())
        assert f"![{batches.BATCHES[model][0]} by batch sizes]" in section
        assert (batches.CHARTS / f"batches_{model}.png").is_file()
        for row in record["summary"]:
            assert row["failure"] == "" and f"| {row['batch']} |" in section
    assert section.count("### ") == len(kept)
