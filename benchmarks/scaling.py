"""Mixed precision on many devices, by a model: ``python -m benchmarks.scaling``.

    step(n) = compute + exchanges * (reduce(n) + gather(n)) + wait(n)
    reduce(n) = 2 (n - 1) alpha + 2 (n - 1) / n * bytes / beta
    gather(n) = (n - 1) (alpha + bytes / beta)

Rings with a latency alpha per hop and a bandwidth beta. Compute is what was measured on
one device; nothing of the exchange is hidden behind it. What being several costs beside
that is the host's: as much per step as the float32 step on eight devices was published
to take in excess, or, where the devices of a machine all wait for one host, as long as
it takes for all of them. The mixed step there, which no term was fitted to, is the
check.
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import markdown_table
from benchmarks.results import publish

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

    def gather_seconds(self, devices: int, data_bytes: float) -> float:
        """Return what it takes to give every device the data of all."""
        link = self.inside if devices <= self.per_machine else self.between
        return (devices - 1) * (link.alpha + data_bytes / link.beta)


# Six NVLinks of 25 GB/s each way, and four InfiniBand cards of 12.5 GB/s, of which a
# ring gets about four fifths; round figures for latencies. Nothing here was fitted.
DGX1 = Cluster(8, Link(10e-6, 120e9), Link(20e-6, 40e9))


@dataclass(frozen=True)
class Exchange:
    """What devices tell each other in a step.

    Attributes:
        reduced: elements of the gradients that are added up.
        gathered: elements of sparse gradients, of which each device gets all.
        times: how often in a step.
    """

    reduced: int
    gathered: int = 0
    times: int = 1

    def seconds(self, devices: int, cluster: Cluster, *, low: bool) -> float:
        """Return what it takes; sparse gradients always travel in float32."""
        width = _LOW_BYTES if low else _FLOAT32_BYTES
        return self.times * (
            cluster.ring_seconds(devices, width * self.reduced)
            + cluster.gather_seconds(devices, _FLOAT32_BYTES * self.gathered)
        )


@dataclass(frozen=True)
class Model:
    """Published figures of a model: pairs are float32 and mixed.

    Attributes:
        name: of the model.
        items: per step and device, on eight devices.
        exchange: of a step.
        one: items per second on one device.
        eight: the same on eight.
        source: of the figures.
        is_host_bound: whether the devices of a machine wait for one host.
    """

    name: str
    items: tuple[int, int]
    exchange: Exchange
    one: tuple[float, float]
    eight: tuple[float, float]
    source: str
    is_host_bound: bool = False

    def host_seconds(self, cluster: Cluster) -> float:
        """Return what the host takes, by the float32 step on eight devices."""
        measured = _CHECKED * self.items[0] / self.eight[0]
        if self.is_host_bound:
            return measured
        compute = self.items[0] / self.one[0]
        exchange = self.exchange.seconds(_CHECKED, cluster, low=False)
        return max(0.0, measured - compute - exchange)

    def rate(
        self, devices: int, cluster: Cluster, *, mixed: bool, low: bool, host: float
    ) -> float:
        """Return items per second of all devices.

        Args:
            devices: how many.
            cluster: that they are in.
            mixed: whether they compute in mixed precision.
            low: whether gradients travel in 16 bits.
            host: seconds per step of `host_seconds`.
        """
        items = self.items[mixed]
        seconds = items / self.one[mixed]
        if devices > 1:
            seconds += self.exchange.seconds(devices, cluster, low=low)
            if self.is_host_bound:
                beside = min(devices, cluster.per_machine) / _CHECKED
                seconds = max(seconds, host * beside)
            else:
                seconds += host
        return devices * items / seconds

    def speed_up(
        self, devices: int, cluster: Cluster, *, low: bool, host: float
    ) -> float:
        """Return the rate in mixed precision over that in float32."""
        float32 = self.rate(devices, cluster, mixed=False, low=False, host=host)
        return self.rate(devices, cluster, mixed=True, low=low, host=host) / float32


_TRANSFORMER_XL_ELEMENTS = 267_735 * 512 + 16 * (5 * 512 * 512 + 2 * 512 * 2048)
_WIDE_DEEP_BATCH = 16_384
# Of its three large tables no more than a row per sample, of the others all rows.
_WIDE_DEEP_ROWS = 3 * _WIDE_DEEP_BATCH * 128 + 38_200 * 64
MODELS = (
    Model(
        "ResNet-50",
        (128, 256),
        Exchange(25_557_032),
        (412, 1270),
        (3170, 9510),
        f"{_NVIDIA}, ResNet-50 v1.5, images; 3.08 to 3.00",
    ),
    Model(
        "wide & deep",
        (_WIDE_DEEP_BATCH, _WIDE_DEEP_BATCH),
        Exchange(1376 * 1024 + 4 * 1024 * 1024, _WIDE_DEEP_ROWS),
        (180_561, 257_995),
        (472_143, 473_195),
        f"{_NVIDIA}, wide & deep, samples; 131,072 on one device and 16,384 on each of "
        "eight; 1.43 to 1.00, in another edition 1.49 to 1.03; gradients of layers are "
        "added up, those of tables gathered: a row per sample, or the whole table; "
        "bound by its host, as its authors say of the embeddings' way between host and "
        "GPU; eight A100: 617,910 in TF32, 584,688 mixed",
        is_host_bound=True,
    ),
    Model(
        "Transformer-XL base",
        (32 * 192, 32 * 192),
        Exchange(_TRANSFORMER_XL_ELEMENTS, times=2),
        (9104, 13_004),
        (78_626, 101_954),
        f"{_NVIDIA}, Transformer-XL, tokens; a batch of 256 sequences in all, 16 at a "
        "time; 1.43 to 1.30; gradients are made dense and exchanged after each of the "
        "two parts that a device accumulates; elements from the published sizes of its "
        "layers and vocabulary",
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
    titles = ("model", "1 GPU", "8 GPUs", "exchange alone", "host ms", "with host")
    return markdown_table(titles, rows)


def check_remarks(cluster: Cluster = DGX1) -> str:
    """Return how many times the rate of one device eight have, as Markdown."""
    return "\n".join(
        f"- {model.name}, {'mixed' if mixed else 'float32'}: "
        f"{_scaled(model, cluster, mixed=mixed)}."
        for model in MODELS
        for mixed in (False, True)
    )


def _scaled(model: Model, cluster: Cluster, *, mixed: bool) -> str:
    one, eight = model.one[mixed], model.eight[mixed]
    host = model.host_seconds(cluster)
    modeled = model.rate(_CHECKED, cluster, mixed=mixed, low=False, host=host)
    beyond = f", more than {_CHECKED}" if eight > _CHECKED * one else ""
    return (
        f"published {eight / one:.2f}{beyond}, the model's with host "
        f"{modeled / one:.2f} ({modeled / eight - 1:+.0%})"
    )


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
            "*exchange alone* has no fitted term, *host ms* is what the float32 step "
            "on eight GPUs takes beyond compute and exchange, or all of it where the "
            "model is bound by its host, and *with host* charges it to the mixed step "
            "too. Second table: the model, with the host's share, for as many devices, "
            "each with its batch of eight; gradients of mixed precision in float32 or "
            "in 16 bits, those of float32 in float32.",
            "Items per second on eight GPUs over those on one; the model, in which "
            f"each device computes what it did alone, gives at most {_CHECKED}:",
            check_remarks(),
            f"The ring: {_link('within a machine of 8 GPUs', DGX1.inside)}; "
            f"{_link('between machines', DGX1.between)}. From data sheets at four "
            "fifths, latencies round figures; not measured here. Nothing overlaps with "
            "compute, so that real exchanges may cost less.",
            "\n".join(f"- {model.name}: {model.source}." for model in MODELS),
            "![Speed-up and efficiency by number of devices](../docs/scaling.png)",
        )
    )


def _link(where: str, link: Link) -> str:
    return f"{where} {1e6 * link.alpha:.0f} µs per hop and {link.beta / 1e9:.0f} GB/s"


def main() -> None:
    """Print the tables, draw the chart, and write the section of RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling")
    parser.add_argument("--chart", type=Path, default=CHART, help="where to draw")
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    if not options.dry:
        # Imported here: only the chart needs matplotlib.
        from benchmarks.scaling_chart import draw

        draw(options.chart)
    publish(
        "scaling",
        "\n\n".join((check_table(), scaling_table(), legend())),
        [asdict(model) for model in MODELS],
        is_whole=not options.dry,
    )


if __name__ == "__main__":
    main()
