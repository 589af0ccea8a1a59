"""Functions compiled by XLA stay as they are where rewriting fails or is off."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tf_amp
from tests.xla_chain import Chain, error, exact
from tf_amp.errors import RewriteError

pytestmark = pytest.mark.usefixtures("everything_eligible")


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from tf_amp._tensorflow_private.functions import FunctionAccess

    monkeypatch.setattr(FunctionAccess, "library", lambda self: {}[self.name])


def test_a_rewrite_that_fails_is_raised_or_leaves_the_function_and_names_it(
    without_library: None, caplog: pytest.LogCaptureFixture
) -> None:
    def compiled(chain: Chain) -> list[tf.Tensor]:
        return tf.function(lambda: chain.gradients(chain.loss), jit_compile=True)()

    with pytest.raises(RewriteError, match=r"__inference_.* stays float32"):
        compiled(Chain())
    caplog.clear()
    tf_amp.enable("bfloat16", opt_level="O2", strict=False, loss_scale="none")
    assert error(compiled(Chain()), exact()) < 1e-5
    (warning,) = [r for r in caplog.records if "stays float32" in r.getMessage()]
    assert "__inference_" in warning.getMessage()


def test_without_access_to_functions_one_warning_says_so(caplog) -> None:
    from tf_amp._tensorflow_private import functions as private

    for _ in range(2):
        assert private.access_to(object()) is None
    (warning,) = [r for r in caplog.records if "AtomicFunction" in r.getMessage()]
    assert "compiled by XLA stay float32" in warning.getMessage()


def test_disabling_takes_the_hook_back() -> None:
    from tensorflow.python.eager.polymorphic_function import atomic_function

    assert hasattr(atomic_function.from_func_graph, "__wrapped__")
    tf_amp.disable()
    assert not hasattr(atomic_function.from_func_graph, "__wrapped__")
