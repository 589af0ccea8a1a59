"""Mixed precision on many devices, by a model: ``python -m benchmarks.scaling``.

    step(n) = compute + host(n) + 2 (n - 1) alpha + 2 (n - 1) / n * bytes / beta

A ring all-reduce with a latency alpha per hop and a bandwidth beta. Compute is what was
measured on one device; nothing of the exchange is hidden behind it. Host, the rest of
what being several costs, is fitted to the float32 step on eight devices where it was
published; the mixed step there, which no term was fitted to, is the check.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.context import context_of
from benchmarks.report import markdown_table
from benchmarks.results import keep_table, write_results

DEVICES = tuple(2**power for power in range(11))
CHART = Path(__file__).resolve().parent.parent / "docs" / "scaling.png"
_CHECKED = 8
_FLOAT32_BYTES, _LOW_BYTES = 4, 2
_NVIDIA = "NVIDIA DeepLearningExamples, TensorFlow, DGX-1 with V100"


@dataclass(frozen=True)
class Link:
    """A ring's hops: seconds each, and bytes per second for a ring."""

    alpha: float
    beta: float


@dataclass(frozen=True)
class Cluster:
    """Machines of some devices each; both links in rings over all devices."""

    per_machine: int
    inside: Link
    between: Link

    def ring_seconds(self, devices: int, data_bytes: float) -> float:
        """Return what an all-reduce takes; the slowest hop sets the pace."""
        link = self.inside if devices <= self.per_machine else self.between
        moved = 2 * (devices - 1) / devices * data_bytes
        return 2 * (devices - 1) * link.alpha + moved / link.beta


# Six NVLinks of 25 GB/s each way, and four InfiniBand cards of 12.5 GB/s, of which a
# ring gets about four fifths; round figures for latencies. Nothing here was fitted.
DGX1 = Cluster(8, Link(10e-6, 120e9), Link(20e-6, 40e9))


@dataclass(frozen=True)
class Model:
    """Published figures of a model: pairs are float32 and mixed.

    Attributes:
        name: of the model.
        items: per step and device, on eight devices.
        elements: of its gradients.
        one: items per second on one device.
        eight: the same on eight.
        source: of the figures.
    """

    name: str
    items: tuple[int, int]
    elements: int
    one: tuple[float, float]
    eight: tuple[float, float]
    source: str

    def host_seconds(self, cluster: Cluster) -> float:
        """Return what the float32 step on eight devices leaves unexplained, if any."""
        measured = _CHECKED * self.items[0] / self.eight[0]
        compute = self.items[0] / self.one[0]
        ring = cluster.ring_seconds(_CHECKED, _FLOAT32_BYTES * self.elements)
        return max(0.0, measured - compute - ring)

    def rate(
        self, devices: int, cluster: Cluster, *, mixed: bool, low: bool, host: float
    ) -> float:
        """Return items per second of all devices.

        Args:
            devices: how many.
            cluster: that they are in.
            mixed: whether they compute in mixed precision.
            low: whether gradients travel in 16 bits.
            host: seconds per step that several devices cost beside the exchange.
        """
        items = self.items[mixed]
        seconds = items / self.one[mixed]
        if devices > 1:
            size = _LOW_BYTES if low else _FLOAT32_BYTES
            seconds += host + cluster.ring_seconds(devices, size * self.elements)
        return devices * items / seconds

    def speed_up(
        self, devices: int, cluster: Cluster, *, low: bool, host: float
    ) -> float:
        """Return the rate in mixed precision over that in float32."""
        float32 = self.rate(devices, cluster, mixed=False, low=False, host=host)
        return self.rate(devices, cluster, mixed=True, low=low, host=host) / float32


_TRANSFORMER_XL_ELEMENTS = 267_735 * 512 + 16 * (5 * 512 * 512 + 2 * 512 * 2048)
_WIDE_DEEP_ELEMENTS = (
    (300_000 + 100_000 + 250_000) * 128 + 38_200 * 64 + 1376 * 1024 + 4 * 1024 * 1024
)
MODELS = (
    Model(
        "ResNet-50",
        (128, 256),
        25_557_032,
        (412, 1270),
        (3170, 9510),
        f"{_NVIDIA}, ResNet-50 v1.5, images; 3.08 to 3.00",
    ),
    Model(
        "wide & deep",
        (16_384, 16_384),
        _WIDE_DEEP_ELEMENTS,
        (180_561, 257_995),
        (472_143, 473_195),
        f"{_NVIDIA}, wide & deep, samples; 131,072 on one device and 16,384 on each of "
        "eight; 1.43 to 1.00, in another edition 1.49 to 1.03; elements from the "
        "published sizes of its tables and layers, dense",
    ),
    Model(
        "Transformer-XL base",
        (32 * 192, 32 * 192),
        _TRANSFORMER_XL_ELEMENTS,
        (9104, 13_004),
        (78_626, 101_954),
        f"{_NVIDIA}, Transformer-XL, tokens; a batch of 256 sequences in all; 1.43 to "
        "1.30; elements from the published sizes of its layers and vocabulary",
    ),
)


def check_table(cluster: Cluster = DGX1) -> str:
    """Return the published ratios beside the model's, as Markdown."""
    rows = []
    for model in MODELS:
        host = model.host_seconds(cluster)
        published = model.eight[1] / model.eight[0]
        ring = model.speed_up(_CHECKED, cluster, low=False, host=0.0)
        fitted = model.speed_up(_CHECKED, cluster, low=False, host=host)
        rows.append(
            (
                model.name,
                f"{model.one[1] / model.one[0]:.2f}",
                f"{published:.2f}",
                f"{ring:.2f} ({ring / published - 1:+.0%})",
                f"{1e3 * host:.0f}",
                f"{fitted:.2f} ({fitted / published - 1:+.0%})",
            )
        )
    titles = ("model", "1 GPU", "8 GPUs", "ring alone", "host ms", "ring and host")
    return markdown_table(titles, rows)


def scaling_table(cluster: Cluster = DGX1) -> str:
    """Return speed-ups for numbers of devices, as Markdown."""
    rows = []
    for model in MODELS:
        host = model.host_seconds(cluster)
        for low in (False, True):
            speed_ups = (
                f"{model.speed_up(n, cluster, low=low, host=host):.2f}" for n in DEVICES
            )
            rows.append((model.name, "16 bits" if low else "float32", *speed_ups))
    return markdown_table(("model", "gradients", *map(str, DEVICES)), rows)


def legend() -> str:
    """Return what the tables say and what they rest on."""
    return "\n\n".join(
        (
            "Speed-up of mixed precision over float32 in items per second. First "
            "table: published for one and for eight V100, and the model's for eight; "
            "*ring alone* has no fitted term, *host ms* is what the float32 step on "
            "eight GPUs takes beyond compute and ring, and *ring and host* charges it "
            "to the mixed step too. Second table: the model, with the host's share, "
            "for as many devices, each with its batch of eight; gradients of mixed "
            "precision in float32 or in 16 bits, those of float32 in float32.",
            f"The ring: {_link('within a machine of 8 GPUs', DGX1.inside)}; "
            f"{_link('between machines', DGX1.between)}. From data sheets at four "
            "fifths, latencies round figures; not measured here. Nothing overlaps with "
            "compute, so that real exchanges may cost less.",
            "What the check tells: ResNet-50 agrees. What wide & deep loses on eight "
            "GPUs is not the exchange; its authors name transfers of embeddings "
            "between host and GPU, which take longer in mixed precision than the "
            "float32 step tells. Transformer-XL in float32 is published as more than "
            "eight times as fast on eight GPUs, since one GPU accumulates gradients "
            "sixteen times instead of twice; a model in which each device computes "
            "what it did alone has no place for that.",
            "\n".join(f"- {model.name}: {model.source}." for model in MODELS),
            "![Speed-up and efficiency by number of devices](../docs/scaling.png)",
        )
    )


def _link(where: str, link: Link) -> str:
    return f"{where} {1e6 * link.alpha:.0f} µs per hop and {link.beta / 1e9:.0f} GB/s"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, draw the chart, and write the section of RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling")
    parser.add_argument("--chart", type=Path, default=CHART, help="where to draw")
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args(arguments)
    markdown = "\n\n".join((check_table(), scaling_table(), legend()))
    print(markdown)
    if options.dry:
        return
    # Imported here: only the chart needs matplotlib.
    from benchmarks.scaling_chart import draw

    draw(options.chart)
    command = " ".join(("python -m benchmarks.scaling", *sys.argv[1:]))
    keep_table("scaling", markdown, context_of(command, rounds=1))
    write_results()


if __name__ == "__main__":
    main()
