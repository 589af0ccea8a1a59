"""Of what was enabled before, nothing is in force once it has been disabled."""

from __future__ import annotations

import pytest

from tests.fresh_process import output_of


def test_plans_that_were_resumed_are_known_until_the_last_scope_is_left() -> None:
    lines = output_of(
        """
        from tf_amp.rewriting import host
        from tf_amp.rewriting.resumed_plans import PlanRecord

        def known():
            return len(host.current().memory.known())

        tf_amp.enable(opt_level="O2")
        dtype_of(product())
        host.current().memory.resume({"key": PlanRecord("step", "1", 1)})
        with tf_amp.mixed_precision_scope():
            tf_amp.disable()
            print(known())
        tf_amp.disable()
        tf_amp.enable(opt_level="O2")
        print(known(), len(tf_amp.plans()))
        """
    )
    assert lines == ["1", "0 1"]


@pytest.mark.parametrize("is_disabled", [True, False])
def test_a_failure_is_reported_again_once_it_was_disabled(is_disabled: bool) -> None:
    lines = output_of(
        f"""
        from absl import logging
        from grappler_pass import pipeline

        def fail(*args, **kwargs):
            raise ZeroDivisionError("planted")

        pipeline.optimize = fail
        logging.warning = lambda text, *args, **kwargs: print(text % args)
        for _ in range(2):
            tf_amp.enable(opt_level="O2")
            dtype_of(product())
            if {is_disabled}:
                tf_amp.disable()
        """
    )
    assert len(lines) == 1 + is_disabled
    assert all("stays float32" in line for line in lines)


def test_graphs_without_stamps_stay_float32_once_others_have_them() -> None:
    lines = output_of(
        """
        from tf_amp import _tensorflow_private as private

        def traced_before():
            traced = product()
            traced.get_concrete_function(X, EYE)
            return traced

        create_op = private.CREATE_OP
        private.CREATE_OP = create_op._replace(path="tensorflow:gone")
        early, late = traced_before(), traced_before()
        tf_amp.enable(opt_level="O2")
        print(dtype_of(early))
        tf_amp.disable()
        private.CREATE_OP = create_op
        tf_amp.enable(opt_level="O2")
        print(dtype_of(late), dtype_of(product()))
        """
    )
    assert lines == ["bfloat16", "float32 bfloat16"]


def test_scopes_and_the_process_go_by_the_environment_again() -> None:
    lines = output_of(
        """
        from tf_amp.config import scope_registry

        tf_amp.enable("float16", opt_level="O2", strict=True)
        tf_amp.disable()
        print(scope_registry.base_config() == tf_amp.AmpConfig.from_env())
        with tf_amp.mixed_precision_scope(opt_level="O2"):
            print(dtype_of(product()))
        """
    )
    assert lines == ["True", "bfloat16"]
