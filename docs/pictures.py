"""Write the pictures of docs/report.md and those of bench again.

python docs/pictures.py              all of them, in some minutes
python docs/pictures.py report_numbers report_compare

Those of reports are parts of pages of real jobs, in Chromium. Those of bench are drawn
from samples that are kept.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

DOCS = pathlib.Path(__file__).parent
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")

RESNET = """
import keras, numpy as np
keras.utils.set_random_seed(1)
model = keras.applications.ResNet50(weights=None, input_shape=(96, 96, 3), classes=10)
model.compile("sgd", "sparse_categorical_crossentropy")
x, y = np.random.rand(8, 96, 96, 3), np.random.randint(10, size=8)
model.fit(x, y, batch_size=8, verbose=0)
"""
CONVOLUTIONS = """
import keras
from sklearn.datasets import load_digits
keras.utils.set_random_seed(1)
digits = load_digits()
x, y = digits.images[:256, ..., None] / 16, digits.target[:256]
x = x.repeat(4, 1).repeat(4, 2)
layers = [keras.layers.Conv2D(64, 3, 2, "same", activation="relu") for _ in range(3)]
layers += [keras.layers.Flatten(), keras.layers.Dense(256)]
layers += [keras.layers.LayerNormalization(), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((32, 32, 1)), *layers], name="digits")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss)
model.fit(x, y, batch_size=256, verbose=0)
"""
STEPS = """
import keras, keras_callbacks, tf_amp
from sklearn.datasets import load_digits
start = tf_amp.DynamicLossScale(initial=2.0**20, growth_interval=40)
tf_amp.enable("float16", opt_level="O2", loss_scale=start)
keras.utils.set_random_seed(1)
digits = load_digits()
x, y = digits.data[:1472] / 16, digits.target[:1472]
layers = [keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu")]
model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss)
health = keras_callbacks.GradientHealthMonitor(every=1)
told = [keras_callbacks.PrecisionReport("steps"), health]
model.fit(x, y, batch_size=64, epochs=8, verbose=0, callbacks=told)
"""
MODEL = """
import keras
layers = keras.layers
model = keras.Sequential([keras.Input((1024,))])
for _ in range(3):
    model.add(layers.Dense(2048, "gelu"))
    model.add(layers.LayerNormalization())
model.add(layers.Dense(10))
model.export("mlp", verbose=False)
"""
SCRIPTS = {
    "resnet50.py": RESNET,
    "digits.py": CONVOLUTIONS,
    "steps.py": STEPS,
    "export.py": MODEL,
}


class Picture(NamedTuple):
    """A part of a page.

    Attributes:
      commands: that make it, of a shell; the last one writes page.html.
      part: a selector of the sections that are shown; "" for the first screen.
      env: environment variables of the commands.
      click: the name of an operation to click on before.
    """

    commands: tuple[str, ...]
    part: str = ""
    env: Mapping[str, str] = {}
    click: str = ""


MARGIN = 16
REPORT = "tf-amp report"
PICTURES = {
    "report": Picture(
        (f"{REPORT} resnet50.py -o page.html",),
        env={"TF_AMP_DEVICE_PROFILE": "cpu-avx512-bf16"},
    ),
    "report_details": Picture(
        (f"{REPORT} digits.py -o page.html",),
        "section:has(> h3:text-is('Where the time goes'))",
        env={"TF_AMP_DEVICE_PROFILE": "cpu-amx-bf16", "TF_AMP_TUNE": "off"},
        click="Conv2DBackpropFilter",
    ),
    "report_steps": Picture(
        ("python steps.py", f"{REPORT} steps -o page.html"),
        "section:has(> h2:text-matches('^(Loss scale|Gradients) '))",
    ),
    "report_numbers": Picture(
        (
            "mkdir numbers",
            "tf-amp verify digits.py --device-profile cpu-amx-bf16 --json"
            " > numbers/numbers.json",
            f"{REPORT} numbers -o page.html",
        ),
        "section:has(> h2:text-matches('^Numbers of'))",
    ),
    "report_times": Picture(
        (
            "python export.py",
            "mkdir times",
            "tf-amp explain --measure --json --batch 256 mlp > times/times.json",
            f"{REPORT} times -o page.html",
        ),
        "section:has(> h2:text-matches('^Predicted and measured'))",
        env={"TF_AMP_OPT_LEVEL": "O2"},
    ),
    "report_compare": Picture(
        (
            "TF_AMP_LOG=O1 tf-amp run digits.py",
            "TF_AMP_LOG=O2 TF_AMP_OPT_LEVEL=O2 tf-amp run digits.py",
            f"{REPORT} O1 --compare O2 -o page.html",
        ),
        "section:has(> h2:text-matches('^Beside'))",
        env={"TF_AMP_DEVICE_PROFILE": "cpu-amx-bf16", "TF_AMP_TUNE": "off"},
    ),
}


# By name, samples that `tf-amp bench --json` has kept.
BENCHES = {
    f"evidence/batches_{path.stem}": path
    for path in (DOCS.parent / "evidence" / "raw" / "batches").glob("*.json")
}


def record_from(samples: pathlib.Path) -> Any:
    """Return what bench has measured and kept."""
    from tf_amp.report.codec import from_plain
    from tf_amp.tools.bench.record import BenchRecord

    return from_plain(BenchRecord, json.loads(samples.read_text()))


def chart(samples: pathlib.Path) -> bytes:
    """Return bench's chart of samples that are kept."""
    from tf_amp.tools.bench.rendering import png_of

    return png_of(record_from(samples))


def shown(page: Any, picture: Picture) -> bytes:
    """Return a picture of the parts of a page that is open, with a margin."""
    if not picture.part:
        return page.screenshot()
    parts = page.locator(picture.part)
    for part in parts.all():
        # A chart is drawn once it is seen.
        part.scroll_into_view_if_needed()
        page.wait_for_timeout(1000)
    if picture.click:
        page.locator(".slice", has_text=picture.click).last.click()
        page.wait_for_timeout(500)
    page.evaluate("scrollTo(0, 0)")
    boxes = [part.bounding_box() for part in parts.all()]
    top = min(box["y"] for box in boxes)
    clip = {
        "x": boxes[0]["x"] - MARGIN,
        "y": top + 1,
        "width": boxes[0]["width"] + 2 * MARGIN,
        "height": max(box["y"] + box["height"] for box in boxes) - top,
    }
    return page.screenshot(clip=clip, full_page=True)


def main(names: list[str]) -> None:
    """Write the pictures of these names; of none, all."""
    for name in BENCHES.keys() & (names or BENCHES):
        (DOCS / f"{name}.png").write_bytes(chart(BENCHES[name]))
        print(DOCS / f"{name}.png")
    pages = [name for name in names or PICTURES if name not in BENCHES]
    if not pages:
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        for name in pages:
            picture = PICTURES[name]
            with tempfile.TemporaryDirectory() as folder:
                for script, text in SCRIPTS.items():
                    pathlib.Path(folder, script).write_text(text)
                env = {**os.environ, **picture.env, "TF_CPP_MIN_LOG_LEVEL": "2"}
                for command in picture.commands:
                    subprocess.run(command, cwd=folder, env=env, shell=True, check=True)
                window = {"width": 1180, "height": 860}
                page = browser.new_page(viewport=window, color_scheme="light")
                page.goto(f"file://{folder}/page.html")
                page.wait_for_timeout(1000)
                (DOCS / f"{name}.png").write_bytes(shown(page, picture))
                page.close()
            print(DOCS / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
