"""The command lines of each snapshot: one for each command and format.

Plans are for a profile that is named, so that they are the same on every machine.
Besides `tf-amp`, `cat` prints a file that a command has written, of a page what its
reader sees, and `| grep` keeps lines that match.
"""

from __future__ import annotations

import dataclasses
import os

_V100 = "--device-profile v100"
_PLANNED = "TF_AMP_DEVICE_PROFILE=v100"
_CPU = "TF_AMP_DEVICE_PROFILE=cpu-avx512-bf16"
_ALWAYS = f"{_V100} --dtype float16 --opt-level O2"
_OF_SCRIPTS = (f"audit {_V100}", "explain", "ranges", "report", "verify", "run")
_ADD = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_CLEARLIST_ADD"
_BRIEFLY = "--rounds 1 --step-seconds 0.1 --batches 8"
COMMANDS = (
    "audit",
    "bench",
    "calibrate",
    "convert",
    "doctor",
    "explain",
    "ranges",
    "report",
    "run",
    "verify",
)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Command lines, run one after the other in a folder of their own.

    Attributes:
      name: of the file.
      lines: as typed.
      runs_products: whether a product is computed in 16 bits.
      is_long: whether it is left to `make test-long`.
    """

    name: str
    lines: tuple[str, ...]
    runs_products: bool = False
    is_long: bool = False

    @property
    def why_not(self) -> str:
        """Say why it cannot be printed here; empty: it can.

        A product that TensorFlow gives to oneDNN for what the CPU has, and oneDNN may
        not compute, ends the process.
        """
        is_held = self.runs_products and "ONEDNN_MAX_CPU_ISA" in os.environ
        return "oneDNN is held to fewer instructions than the CPU has" * is_held


SNAPSHOTS = (
    Snapshot("help", ("tf-amp --help", "tf-amp --version", "tf-amp")),
    *(Snapshot(f"{each}.help", (f"tf-amp {each} --help",)) for each in COMMANDS),
    Snapshot(
        "completion",
        ("tf-amp --print-completion bash | grep strings=|choices=|COMPGEN=",),
    ),
    Snapshot(
        "audit",
        (
            "tf-amp audit model --device-profile v100 --batch 4096",
            "tf-amp audit train.py --device-profile t4 --dtype float16 -- a b",
            "tf-amp audit idle.py --device-profile a100",
        ),
    ),
    Snapshot("audit.json", ("tf-amp audit model --device-profile a100 --json",)),
    Snapshot(
        "bench",
        (
            f"tf-amp bench steps:make_step {_BRIEFLY} --methods tf-amp:O2",
            f"tf-amp bench model {_BRIEFLY} --methods float32 --json kept.json",
        ),
        runs_products=True,
        is_long=True,
    ),
    Snapshot(
        "calibrate",
        ("tf-amp calibrate --seconds 1 --out profile.json",),
        runs_products=True,
        is_long=True,
    ),
    Snapshot(
        "convert",
        (
            f"tf-amp convert model mixed {_V100} --batch 4096",
            f"tf-amp convert model low {_ALWAYS} --weights low --no-keep-io",
            "cat low/assets.extra/tf_amp/plan.txt",
            "tf-amp convert low back --to float32",
            f"tf-amp convert frozen.pb mixed.pb {_ALWAYS} --exclude nothing",
            f"tf-amp convert net.keras kept {_ALWAYS}",
            f"tf-amp convert model held {_ALWAYS} --calibration data.npz",
        ),
    ),
    Snapshot(
        "convert.verified",
        (f"tf-amp convert model mixed {_ALWAYS} --verify",),
        runs_products=True,
    ),
    Snapshot("convert.json", (f"tf-amp convert model mixed {_ALWAYS} --json",)),
    Snapshot("doctor", (f"{_PLANNED} tf-amp doctor",), runs_products=True),
    Snapshot(
        "doctor.json",
        (
            f"{_PLANNED} tf-amp doctor --json",
            "TF_AMP_OPT_LEVEL=O9 tf-amp doctor --json | grep healthy|O9|unset|true",
        ),
        runs_products=True,
    ),
    Snapshot(
        "doctor.learned",
        (
            "TF_AMP_CACHE=lessons tf-amp doctor --learned",
            "TF_AMP_CACHE=lessons tf-amp doctor --learned --json",
            "TF_AMP_CACHE=none tf-amp doctor --learned",
        ),
    ),
    Snapshot(
        "explain",
        (
            f"{_PLANNED} tf-amp explain model --top 5",
            f"{_CPU} TF_AMP_OPT_LEVEL=O2 tf-amp explain train.py --top 0 -- a b",
            f"{_PLANNED} tf-amp explain idle.py",
            f"{_PLANNED} tf-amp explain failing.py",
        ),
    ),
    Snapshot(
        "explain.json",
        (f"{_PLANNED} TF_AMP_OPT_LEVEL=O2 tf-amp explain model --json",),
    ),
    Snapshot(
        "explain.measured",
        (f"{_PLANNED} tf-amp explain model --top 1 --measure",),
        is_long=True,
    ),
    Snapshot(
        "ranges",
        (
            "tf-amp ranges model --data data.npz --out ranges.json",
            "cat ranges.json",
            "tf-amp ranges large.py --dtype float16 --top 3",
            "tf-amp ranges idle.py",
        ),
    ),
    Snapshot("ranges.json", ("tf-amp ranges large.py --limit 100 --json",)),
    Snapshot(
        "report",
        (
            f"tf-amp report train.py -o page.html {_V100} -- a b",
            "cat page.html",
            f"tf-amp report model -o page.html {_V100} --measure",
            "cat page.html",
            "tf-amp report plan.json --out page.html --compare plan.json",
            "cat page.html",
            "tf-amp report idle.py -o page.html",
        ),
    ),
    Snapshot(
        "run",
        (
            f"tf-amp run {_ALWAYS} --verbose train.py a b",
            f"tf-amp run {_ALWAYS} --quiet --log graphs train.py",
            f"tf-amp run {_V100} train.py",
            "tf-amp failing.py",
        ),
        runs_products=True,
    ),
    Snapshot(
        "verify",
        (
            f"tf-amp verify model {_ALWAYS} --data data.npz",
            f"tf-amp verify train.py {_ALWAYS} -- a b",
            f"tf-amp verify large.py {_ALWAYS} --bisect",
            "cat tf-amp-exclude.txt",
            f"tf-amp verify large.py {_ALWAYS} --exclude @tf-amp-exclude.txt",
            "tf-amp verify idle.py",
        ),
        runs_products=True,
    ),
    Snapshot(
        "verify.json",
        (f"tf-amp verify large.py {_ALWAYS} --json",),
        runs_products=True,
    ),
    Snapshot("failing", tuple(f"tf-amp {each} failing.py" for each in _OF_SCRIPTS)),
    Snapshot(
        "errors",
        (
            "tf-amp nowhere.py",
            "tf-amp ''",
            "tf-amp lessons",
            "tf-amp exlpain model",
            "tf-amp run",
            "tf-amp run -m no.such.module",
            "tf-amp run --opt-level O7 train.py",
            "tf-amp run --device-profile v1000 train.py",
            "tf-amp run --exclude '(' train.py",
            "tf-amp run --add deny train.py",
            "tf-amp run --remove never=Exp train.py",
            "tf-amp run --add deny=Exp --add allow=Exp train.py",
            "tf-amp run --add clear=Rellu train.py",
            "tf-amp run --loss-scale often train.py",
            "tf-amp run --tune never train.py",
            "tf-amp run --fuse no train.py",
            "tf-amp run --ranges none.json train.py",
            "TF_AMP_OPTLEVEL=O2 tf-amp run train.py",
            "TF_ENABLE_AUTO_MIXED_PRECISION=yes tf-amp run train.py",
            "TF_AMP_DEVICE_PROFILE=v1000 tf-amp run train.py",
            "TF_AMP_DTYPE=float12 tf-amp explain model",
            "TF_AMP_DEVICE_PROFILE=v1000 tf-amp explain model",
            f"TF_AMP_RANGES=/nowhere.json tf-amp audit model {_V100}",
            f"{_ADD}=Rellu tf-amp verify model",
            f"{_ADD}=Rellu tf-amp ranges model --data data.npz",
            "TF_AMP_RANGES=/nowhere.json tf-amp convert model mixed",
            "tf-amp explain nowhere",
            "tf-amp explain model --signature predict",
            "tf-amp explain model --bath 256",
            "tf-amp explain model --batch 0",
            "tf-amp explain train.py --batch 8",
            "tf-amp explain train.py --measure",
            "tf-amp explain model --top many",
            "tf-amp explain model --top -3",
            "tf-amp audit model --device-profile v1000",
            "tf-amp audit model",
            "TF_AMP_DEVICE_PROFILE=v1000 tf-amp audit train.py --device-profile v100",
            "tf-amp verify model --data other.npz",
            "tf-amp verify model --data data.npz --batch 48",
            "tf-amp verify model --tolerance -1",
            "tf-amp verify train.py --bisect --write lessons",
            "tf-amp ranges model",
            "tf-amp ranges model --data data.npz --underflow 2",
            "tf-amp ranges train.py --out train.py/in_a_file",
            "tf-amp report absent.py",
            "tf-amp report lessons",
            "tf-amp report broken.json",
            "tf-amp report train.py --measure",
            "tf-amp report lessons --seconds 3",
            "tf-amp report train.py -o absent/page.html",
            "tf-amp report train.py -o lessons",
            "tf-amp report train.py --compare train.py",
            "tf-amp report train.py --compare model",
            "tf-amp report train.py --compare absent.json",
            "tf-amp convert model model",
            "tf-amp convert train.py mixed",
            "tf-amp convert net.keras mixed.keras",
            "tf-amp convert model mixed --dtype float8",
            "tf-amp calibrate --seconds soon",
            "tf-amp calibrate --seconds nan",
            "tf-amp calibrate --seconds -5",
            "tf-amp calibrate --out lessons",
        ),
    ),
    Snapshot(
        "bench.errors",
        (
            "tf-amp bench model --mode train",
            "tf-amp bench nowhere.py --rounds 0",
            "tf-amp bench nowhere.py",
            "tf-amp bench train.py --methods float64",
            "tf-amp bench train.py --methods tf-amp:TUNE=x",
            "tf-amp bench train.py --methods tf-amp:SPEED=1",
            "TF_AMP_TIE=-3 tf-amp bench train.py",
            "tf-amp bench train.py --batches 8",
            "tf-amp bench train.py -- -n {batch}",
            "tf-amp bench steps:make_step --batches 0,-1,x",
            "tf-amp bench steps:make_step --signature s",
            "tf-amp bench steps:make_step -- --fast",
            "tf-amp bench steps:make_step --json no/x",
            "tf-amp bench steps:make_step --json train.py",
            "tf-amp bench steps:make_step --html .",
            "tf-amp bench steps:make_step --html x --png ./x",
        ),
    ),
)
