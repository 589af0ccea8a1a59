"""A rewrite that fails never harms the program."""

from tests.forking import run_forked
from tests.fresh_process import PROBE, output_of
from tf_amp._tensorflow_private.graphs import CONVERT_TO_TFLITE
from tf_amp.runtime import autostart

FAILING = (
    PROBE
    + """
from grappler_pass import pipeline

def broken(draft):
    raise ZeroDivisionError("a slot without a price")

pipeline.STAGES = tuple(
    (name, broken if name == "price" else stage) for name, stage in pipeline.STAGES
)
"""
)


def test_a_failing_stage_leaves_the_graph_and_warns_once_per_graph():
    done = run_forked(
        FAILING
        + """
tf_amp.enable(opt_level="O2")
print(dtype_of(product()), tf_amp.plans())
"""
    )
    assert done.out.splitlines() == ["float32 ()"], done.err
    warnings = [line for line in done.err.splitlines() if "stays float32" in line]
    assert len(warnings) == 1 and warnings[0].endswith("(AMP202)")
    for part in (
        "'function at ",
        "'price'",
        "ZeroDivisionError: a slot without a price",
    ):
        assert part in warnings[0]


def test_a_log_folder_that_cannot_be_written_costs_a_warning_only(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    done = run_forked(
        PROBE
        + f"""
tf_amp.enable(opt_level="O2", log_dir={str(occupied / "graphs")!r})
print(dtype_of(product()), dtype_of(product()))
"""
    )
    assert done.out.splitlines() == ["bfloat16 bfloat16"], done.err
    assert done.err.count("TF_AMP_LOG: cannot write") == 1


def test_a_missing_shim_is_an_error_if_called_for_and_a_warning_if_switched_on():
    program = """
import pathlib
from grappler_pass import plugin
from grappler_pass.plugin import ShimError
from tf_amp.runtime import switch as runtime

plugin.shim_path = lambda device_type: pathlib.Path("/nowhere/shim.so")
try:
    tf_amp.enable()
except ShimError as error:
    print("/nowhere/shim.so" in str(error), tf_amp.is_enabled())
runtime.enable_from_environment()
print(dtype_of(product()), tf_amp.is_enabled())
"""
    done = run_forked(PROBE + program, env={"TF_ENABLE_AUTO_MIXED_PRECISION": "1"})
    assert done.out.splitlines() == ["True False", "float32 False"], done.err
    # Once by the call, and once more by the autostart where that is installed.
    warnings = 1 + autostart.is_installed()
    assert done.err.count("Mixed precision stays off") == warnings
    assert done.err.count("(AMP201)") == warnings


def test_a_hook_that_is_gone_is_said_once_and_the_rest_works():
    done = run_forked(
        PROBE
        + """
from tf_amp import _tensorflow_private as private

place = "tensorflow.python.framework.ops:Graph._gone"
private.CREATE_OP = private.CREATE_OP._replace(path=place)
place = "tensorflow.gone:BaseSession.__init__"
private.CREATE_SESSION = private.CREATE_SESSION._replace(path=place)
for _ in range(2):
    tf_amp.enable(opt_level="O2")
print(dtype_of(product()))
tf_amp.disable()
others = [hook for hook in private.installed() if not hook.of_callbacks]
print(dtype_of(product()), *(hook.method for hook in others))
"""
    )
    lines = done.out.splitlines()
    converter = CONVERT_TO_TFLITE.method
    assert lines == ["bfloat16", f"float32 _do_run {converter}"], done.err[-3000:]
    assert done.err.count("has no Graph._gone any more: functions are") == 1
    assert done.err.count("has no BaseSession.__init__ any more: graphs") == 1


def test_a_patch_that_others_wrapped_is_left_in_place_and_inert():
    lines = output_of(
        """
        from tensorflow.python.framework import ops
        tf_amp.enable(opt_level="O2")
        ours = ops.Graph._create_op_helper
        def theirs(self, *args, **kwargs):
            return ours(self, *args, **kwargs)
        ops.Graph._create_op_helper = theirs
        tf_amp.disable()
        print(ops.Graph._create_op_helper is theirs, dtype_of(product()))
        tf_amp.enable(opt_level="O2")
        print(ops.Graph._create_op_helper is theirs, dtype_of(product()))
        """
    )
    assert lines == ["True float32", "True bfloat16"]
