"""Start by the environment's switch where several threads, or a fork, are in the way.

`autostart.start` is called as the `.pth` file does, which may not be installed here.
"""

import pytest

from tests.forking import run_forked
from tests.fresh_process import PROBE, output_of

LEVEL = {"TF_AMP_OPT_LEVEL": "O2"}
SWITCH = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", **LEVEL}
# Enabling takes long here, and tells when it begins.
SLOW = """
import os, time
from tf_amp.runtime import autostart, switch as runtime

enable, begun = runtime.enable_from_environment, threading.Event()
def enable_slowly(made):
    begun.set()
    time.sleep(0.5)
    autostart.start("made while enabling, in the same thread")
    enable(made)
runtime.enable_from_environment = enable_slowly
first = threading.Thread(target=autostart.start, args=(None,))

def begin():
    # Not before, since the file may be installed.
    os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"
    first.start()
    begun.wait()
"""
# TensorFlow computes in the child alone, where the threads of a parent are missing; the
# child tells how it ended by its exit code.
FORK = f"""
import os, threading, traceback
import tf_amp
from tf_amp.runtime import autostart

PROBE = {PROBE!r}

def in_child(check):
    child = os.fork()
    if not child:
        try:
            os._exit(0 if check() else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def starts_again():
    autostart.start(None)
    exec(PROBE, globals())
    return dtype_of(product()) == "bfloat16"
"""


def test_a_function_traced_while_another_thread_enables_is_rewritten():
    lines = output_of(
        SLOW
        + """
begin()
autostart.start(None)
print(tf_amp.is_enabled(), dtype_of(product()))
first.join()
""",
        env=LEVEL,
    )
    assert lines == ["True bfloat16"]


@pytest.mark.parametrize("then", ["", "first.join()"])
def test_a_session_made_while_another_thread_enables_is_rewritten(then):
    lines = output_of(
        SLOW
        + """
with tf.Graph().as_default():
    a = tf.compat.v1.placeholder(tf.float32, [8, 8])
    b = tf.compat.v1.placeholder(tf.float32, [8, 8])
    c = tf.nn.relu(tf.nn.relu(a @ b))
    session = tf.compat.v1.Session()
begin()
"""
        + then
        + """
autostart.start(session)
value = session.run(c, {a: X.numpy(), b: EYE.numpy()})[0, 0]
print(DTYPES[float(value)])
first.join()
""",
        env=LEVEL,
    )
    assert lines == ["bfloat16"]


def test_a_failed_start_is_tried_again_by_the_thread_that_waited():
    lines = output_of(
        SLOW
        + """
def attempt():
    try:
        autostart.start(None)
    except tf_amp.ConfigError as error:
        print(error)

os.environ["TF_AMP_DTYPE"] = "float17"
first = threading.Thread(target=attempt)
begin()
attempt()
first.join()
os.environ["TF_AMP_DTYPE"] = "float16"
attempt()
print(dtype_of(product()))
""",
        env=LEVEL,
    )
    assert len(lines) == 3
    assert all("float17" in line for line in lines[:2]) and lines[2] == "float16"


def test_a_forked_child_starts_by_the_environment_anew():
    done = run_forked(
        FORK
        + """
autostart.start(None)
print(tf_amp.is_enabled(), in_child(starts_again))
""",
        env=SWITCH,
    )
    assert done.lines() == ["True 0"], done.err


def test_a_forked_child_renews_what_the_program_has_called_for():
    done = run_forked(
        FORK
        + """
tf_amp.enable("bfloat16", opt_level="O2")
print(in_child(starts_again))
tf_amp.disable()
print(in_child(lambda: not starts_again()))
""",
        env={**SWITCH, "TF_AMP_DTYPE": "float16"},
    )
    assert done.lines() == ["0", "0"], done.err


def test_a_child_forked_while_a_thread_enables_does_not_wait_for_it():
    done = run_forked(
        FORK
        + SLOW
        + """
begin()
runtime.enable_from_environment = enable
print(in_child(starts_again))
first.join()
""",
        env=SWITCH,
    )
    assert done.lines() == ["0"], done.err
