"""Under strict settings the call that caused a failed rewrite raises it, and no other.

Whatever fails outside of the pass's stages is reported like what fails in one.
"""

import pytest

from tests.fresh_process import output_of

# Any graph of which a name says so fails in the pass.
FAILING = """
from grappler_pass import pipeline

stages = dict(pipeline.STAGES)
def fail_if_named(draft):
    if "guilty" in draft.name:
        raise ZeroDivisionError("planted")
    return stages["price"](draft)
pipeline.STAGES = tuple((dict(stages, price=fail_if_named)).items())
pipeline._PRICED = pipeline.STAGES[4:]

def attempt(call):
    try:
        return call()
    except tf_amp.RewriteError as error:
        # TensorFlow's filter of tracebacks takes the cause away.
        return f"{type(error.__context__).__name__} {error}"

def guilty(x, y):
    return tf.nn.relu(x @ y)

tf_amp.enable(opt_level="O2", strict=True)
"""
REPORT = "graph 'guilty' stays float32: stage 'price': ZeroDivisionError: planted"

# What is called for each graph outside of the stages, and what the graph then is.
OUTSIDE = {
    "tf_amp.rewriting.arriving_graphs.settings_in": ("marks", "float32"),
    "tf_amp.rewriting.arriving_graphs.marks_from_graph_def": ("marks", "float32"),
    "tf_amp.rewriting.graph_settings.settings_for": ("settings", "float32"),
    "tf_amp.rewriting.arriving_graphs.stripping.is_converted": ("read", "float32"),
    "tf_amp.training.overflow_origin.float32_nodes": ("read", "float32"),
    "tf_amp.rewriting.compiled.called_in_turn": ("compiled", "bfloat16"),
}


def test_what_fails_outside_of_the_stages_is_named_and_raised_too():
    lines = output_of(
        f"""
        from unittest import mock

        logged = []
        from absl import logging
        logging.warning = lambda text, *args, **kwargs: logged.append(text % args)
        for target in {list(OUTSIDE)}:
            for strict in (False, True):
                def traced(x, y):
                    return tf.nn.relu(x @ y)
                traced.__name__ = f"{{target}}_{{strict}}"
                fn = tf.function(traced)
                error = ZeroDivisionError("planted")
                try:
                    with mock.patch(target, side_effect=error):
                        tf_amp.enable(opt_level="O2", strict=strict)
                        dtype_of(fn)
                except tf_amp.RewriteError as failed:
                    print("raised", failed)
                print(*logged, dtype_of(fn))
                logged.clear()
        """
    )
    printed = iter(lines)
    for target, (stage, dtype) in OUTSIDE.items():
        for strict in (False, True):
            begin = f"graph '{target}_{strict}' "
            end = f": stage '{stage}': ZeroDivisionError: planted"
            if strict:
                raised = next(printed)
                assert raised.startswith(f"raised {begin}") and raised.endswith(end)
            warned = next(printed)
            assert warned.startswith(begin)
            assert warned.endswith(f"{end} (AMP202) {dtype}")
    assert not list(printed)


def test_a_call_that_raises_itself_raises_both():
    lines = output_of(
        FAILING
        + """
@tf.function
def guilty(x, y):
    z = tf.nn.relu(x @ y)
    tf.debugging.assert_less(z, 0.0)
    return z

print(attempt(lambda: guilty(X, EYE)))
tf_amp.disable()
tf_amp.enable(opt_level="O0", strict=True)
print(attempt(lambda: tf.function(lambda x: x + 1)(1.0).numpy()))
"""
    )
    assert lines[0] == f"InvalidArgumentError {REPORT}"
    assert lines[1].startswith("The call then failed: InvalidArgumentError: ")
    assert lines[-1] == "2.0"


def test_each_of_several_threads_raises_what_its_own_call_has_caused():
    lines = output_of(
        FAILING
        + """
import concurrent.futures as futures

barrier = threading.Barrier(4)
def innocent(x, y):
    return tf.nn.relu(x @ y)

def work(number):
    outcomes = set()
    for _ in range(5):
        fn = tf.function(guilty if number % 2 else innocent)
        barrier.wait()
        outcomes.add(attempt(lambda: dtype_of(fn)))
    return outcomes

with futures.ThreadPoolExecutor(4) as pool:
    for outcomes in pool.map(work, range(4)):
        print(*outcomes)
"""
    )
    assert lines == ["bfloat16", f"NoneType {REPORT}"] * 2


@pytest.mark.parametrize(
    "kind", ["jit_compile=True", "experimental_attributes={'_noinline': True}"]
)
def test_a_function_that_another_one_calls_fails_that_call_and_no_other(kind):
    lines = output_of(
        FAILING
        + f"""
guilty = tf.function(guilty, autograph=False, {kind})
traced = guilty.get_concrete_function(X, EYE)
print(attempt(lambda: dtype_of(product())))

@tf.function(autograph=False)
def outer(x, y):
    return guilty(x, y) + 0.0
for _ in range(2):
    print(attempt(lambda: outer(X, EYE).shape))
print(attempt(lambda: dtype_of(product())))
"""
    )
    assert "guilty" in lines[1] and "ZeroDivisionError: planted" in lines[1]
    assert lines[0] == lines[3] == "bfloat16" and lines[2] == "(8, 8)"


def test_what_failed_before_any_call_is_forgotten_when_disabled():
    lines = output_of(
        FAILING
        + """
fn = tf.function(guilty, jit_compile=True).get_concrete_function(X, EYE)
tf_amp.disable()
tf_amp.enable(opt_level="O2", strict=True)
print(attempt(lambda: dtype_of(fn)))
"""
    )
    assert lines == ["float32"]


def test_what_was_traced_under_strict_settings_raises_after_they_were_disabled():
    lines = output_of(
        FAILING.replace(
            '"guilty" in draft.name', 'draft.name in ("guilty", "graph of a Session")'
        )
        + """
early = tf.function(guilty)
early.get_concrete_function(X, EYE)
with tf.Graph().as_default():
    a = tf.random.uniform([8, 8])
    b = tf.nn.relu(tf.nn.relu(a @ a))
    session = tf.compat.v1.Session()
tf_amp.disable()
for _ in range(2):
    print(attempt(lambda: dtype_of(early)))
    print(attempt(lambda: session.run(b).shape))
print(attempt(lambda: dtype_of(tf.function(guilty))))
"""
    )
    assert lines[0] == f"NoneType {REPORT}"
    assert lines[1] == f"NoneType {REPORT.replace('guilty', 'graph of a Session')}"
    assert lines[2:] == ["float32", "(8, 8)", "float32"]


def test_what_failed_in_a_callable_of_a_session_is_raised_by_its_next_run():
    lines = output_of(
        FAILING.replace('"guilty" in', '"graph of a Session" ==')
        + """
with tf.Graph().as_default():
    a = tf.random.uniform([8, 8])
    b = tf.nn.relu(tf.nn.relu(a @ a))
    with tf.compat.v1.Session() as session:
        session.make_callable(b)()
        for _ in range(2):
            print(attempt(lambda: session.run(b).shape))
"""
    )
    assert lines[0].startswith("NoneType graph 'graph of a Session' stays float32")
    assert lines[1:] == ["(8, 8)"]


def test_a_graph_that_cannot_be_read_fails_under_the_settings_called_for_last():
    lines = output_of(
        """
        from unittest import mock

        for strict in (True, False, True):
            tf_amp.enable(opt_level="O2", strict=strict)
            error = ZeroDivisionError("planted")
            try:
                stamps = "tf_amp.tracing.stamp_reader._stamps"
                with mock.patch(stamps, side_effect=error):
                    print(dtype_of(product()))
            except tf_amp.RewriteError:
                print("raised")
        """
    )
    assert lines == ["raised", "float32", "raised"]


def test_what_tensorflow_has_left_wrong_itself_stops_no_rewrite():
    """Where nothing is returned, an Identity stays behind ArgMin in Neg's place."""
    (empty,) = output_of(
        """
        centers = tf.Variable(tf.eye(8, 16))
        nearest = tf.Variable(tf.zeros([4], tf.int64))

        def quantize(x):
            nearest.assign(tf.argmax(-tf.matmul(x, centers), 1))

        x = tf.reshape(tf.range(32.0), [4, 8])
        quantize(x)
        expected = nearest.numpy()
        for level in ("O2", "O3"):
            tf_amp.enable("bfloat16", opt_level=level, strict=True)
            nearest.assign(tf.zeros_like(nearest))
            tf.function(quantize)(x)
            assert (nearest.numpy() == expected).all(), nearest
        print(*(plan.is_empty for plan in tf_amp.plans()))
        """
    )
    assert empty == "False False"
