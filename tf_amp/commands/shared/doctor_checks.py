"""The doctor's checks that need TensorFlow.

The last of them rewrites a small function for real.
"""

from __future__ import annotations

import pathlib
import platform

from tf_amp import _tensorflow_private as private
from tf_amp.commands.shared import numa_nodes
from tf_amp.commands.shared.findings import (
    FIX_SETTING,
    REINSTALL,
    Finding,
    Findings,
    settings_set_aside,
)
from tf_amp.config import devices
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError, TensorFlowMissingError
from tf_amp.rewriting import graph_settings
from tf_amp.runtime import switch
from tf_amp.tensorflow_version import check_tensorflow
from tf_amp.tools.bench.record import versions_of

_NVIDIA_DRIVER = pathlib.Path("/proc/driver/nvidia/version")
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "keras", "tf_keras")


def tensorflow() -> Findings:
    """Look for a supported TensorFlow, and list versions."""
    try:
        check_tensorflow()
    except TensorFlowMissingError as error:
        yield Finding("TensorFlow", error.state, error.remedy, fatal=True)
        return
    found = (("Python", platform.python_version()), *versions_of(_DISTRIBUTIONS))
    yield Finding("versions", ", ".join(map(" ".join, found)))


def unusable_settings() -> Findings:
    """Look for settings that no graph could be planned with."""
    try:
        graph_settings.check_config(AmpConfig.from_env())
    except ConfigError as error:
        yield Finding("settings", str(error), FIX_SETTING, fatal=True)


def onednn() -> Findings:
    """Say whether TensorFlow uses oneDNN, without which a CPU gains nothing."""
    words = {
        True: "on",
        False: "off: 16 bits are emulated on this CPU, so nothing will be converted",
        None: "unknown",
    }
    yield Finding("oneDNN", words[private.is_onednn_enabled()])


def found_devices() -> Findings:
    """List devices with the 16-bit type they compute in, and their profile."""
    config = AmpConfig.from_env()
    for device in devices.present_devices():
        profile = devices.profile_of(config, device)
        model = device.model or device.name
        if device.capability:
            model += " (compute capability {}.{})".format(*device.capability)
        state = f"{model}: {device.low_dtype}, profile {profile.name}"
        yield Finding(device.device_type, state)
    if _NVIDIA_DRIVER.exists() and len(devices.present_devices()) == 1:
        state = "an NVIDIA driver is here, but TensorFlow sees no GPU"
        yield Finding("GPU", state, "pip install 'tensorflow[and-cuda]'")


def machine() -> Findings:
    """Say which CPUs and GPUs share a NUMA node, which GPUs a link, and how to bind."""
    nodes, topology = numa_nodes.nodes_here(), numa_nodes.topology_here()
    yield Finding("machine", numa_nodes.described(nodes, topology))


def wrong_kernels() -> Findings:
    """List the 16-bit kernels that are known to be wrong here, or were found so."""
    from grappler_pass.eligibility import known_wrong
    from grappler_pass.eligibility.kernels import described
    from tf_amp.checking import known

    kernels = known.kernels_here(AmpConfig.from_env())
    for machine in kernels.machines.values():
        for row in known_wrong.rows_for(machine):
            yield Finding(f"kernel {row.name}", f"{row}; stays float32")
        for row in known_wrong.rows_for(machine, known_wrong.ALSO_IN_FLOAT32):
            yield Finding(f"kernel {row.name}", f"{row}; nothing helps")
    for outcomes in kernels.outcomes.values():
        for key, fault in outcomes.wrong.items():
            yield Finding("kernel found", f"{described(key)}: {fault}; stays float32")


def choice() -> Findings:
    """Say what would be chosen here, and why, with a dense layer as example."""
    config = AmpConfig.from_env()
    has_gpu = len(devices.present_devices()) > 1
    chosen = devices.choose(config, "GPU" if has_gpu else "CPU")
    yield Finding("choice", f"{chosen.low_dtype}: {chosen.reason}")
    import tensorflow as tf

    from tf_amp.tools.explain.explanation import explain

    spec = tf.TensorSpec([2048, 2048])
    plan = explain(tf.function(lambda x, w: tf.math.tanh(x @ w)), spec, spec)
    decision = plan.filter(op="MatMul").decisions[0]
    yield Finding(
        "example",
        f"product of two 2048 x 2048 matrices: {decision.dtype} at {config.opt_level} "
        f"({decision.reason})",
    )


def rewrite() -> Findings:
    """Rewrite a small function for real, under settings that always do.

    Those of the user may well leave it as it is, which is nothing to fix.
    """
    import tensorflow as tf

    with settings_set_aside():
        switch.enable(opt_level="O2", verbose=False)
        try:
            before = len(switch.plans())
            tf.function(lambda x: tf.math.tanh(x @ x))(tf.ones([64, 64]))
            works = len(switch.plans()) > before
        finally:
            switch.disable()
    if works:
        yield Finding("rewrite", "works: a function of this process was rewritten")
    else:
        state = "TensorFlow does not hand its graphs over"
        yield Finding("rewrite", state, REINSTALL, fatal=True)


CHECKS = (onednn, found_devices, machine, wrong_kernels, choice, rewrite)
