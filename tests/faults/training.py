"""Faults in what trains: loss scales, gradients, skipped steps, checkpoints."""

from __future__ import annotations

from tests.faults.fault import Fault

_CHECKPOINTS = "tests/tf_amp/training/checkpoints"
_FINITENESS = "tests/tf_amp/training/finiteness"
_FUSIONS = "tests/tf_amp/training/fusions"
_GRADIENTS = "tests/tf_amp/training/gradients"
_OPTIMIZERS = "tests/tf_amp/training/optimizers"
_TF_AMP = "tests/tf_amp"

_OF_LOSS_SCALES = (
    Fault(
        "An overflow leaves the loss scale as it is.",
        "tf_amp/config/loss_scales/dynamic.py",
        "lower = tf.maximum(scale * self.backoff_factor, self.minimum)",
        "lower = tf.maximum(scale, self.minimum)",
        (
            f"{_TF_AMP}/config/loss_scales/test_loss_scale.py::"
            "test_a_dynamic_loss_scale_does_what_a_ten_line_model_does",
        ),
    ),
    Fault(
        "The loss scale grows one finite step too late.",
        "tf_amp/config/loss_scales/dynamic.py",
        "grows = good >= self.growth_interval",
        "grows = good > self.growth_interval",
        (
            f"{_TF_AMP}/config/loss_scales/test_loss_scale.py::"
            "test_a_dynamic_loss_scale_does_what_a_ten_line_model_does",
        ),
    ),
    Fault(
        "The loss scale grows beyond its maximum, to infinity in the end.",
        "tf_amp/config/loss_scales/dynamic.py",
        "grown = tf.minimum(scale * self.growth_factor, self.maximum)",
        "grown = scale * self.growth_factor",
        (
            f"{_TF_AMP}/config/loss_scales/test_loss_scale.py::"
            "test_a_dynamic_loss_scale_does_what_a_ten_line_model_does",
        ),
    ),
    Fault(
        "The loss scale falls below its minimum.",
        "tf_amp/config/loss_scales/dynamic.py",
        "lower = tf.maximum(scale * self.backoff_factor, self.minimum)",
        "lower = scale * self.backoff_factor",
        (
            f"{_TF_AMP}/config/loss_scales/test_loss_scale.py::"
            "test_a_dynamic_loss_scale_does_what_a_ten_line_model_does",
        ),
    ),
    Fault(
        "A skipped step counts towards the next growth of the loss scale.",
        "tf_amp/training/scale_update.py",
        'counters = {"good_steps": 0, "skipped_steps": skipped, "finite": 0}',
        "counters = {\n"
        '                "good_steps": reading["good_steps"] + 1,\n'
        '                "skipped_steps": skipped,\n'
        '                "finite": 0,\n'
        "            }",
        (
            f"{_TF_AMP}/config/loss_scales/test_loss_scale.py::"
            "test_an_overflow_at_the_minimum_raises_when_told_to",
            f"{_TF_AMP}/config/loss_scales/test_loss_scale.py::"
            "test_a_static_loss_scale_stays_and_counts",
        ),
    ),
    Fault(
        "A statistical loss scale takes an overflow for what would just have fitted.",
        "tf_amp/config/loss_scales/statistical.py",
        "values = self._follow(state, at_limit + 1.0)",
        "values = self._follow(state, at_limit)",
        (
            f"{_TF_AMP}/config/loss_scales/test_loss_scale.py::"
            "test_a_statistical_loss_scale_takes_overflows_for_twice_what_would_have_fitted",
        ),
    ),
)
_OF_GRADIENTS = (
    Fault(
        "Gradients stay multiplied by the loss scale.",
        "tf_amp/config/loss_scales/protocol.py",
        "return [g * tf.cast(inverse, g.dtype) for g in gradients]",
        "return list(gradients)",
        (
            f"{_GRADIENTS}/test_gradients.py::test_unscaling_carries_the_barrier_mark",
            f"{_GRADIENTS}/test_gradients.py::"
            "test_an_adversarial_example_gets_its_true_gradient",
        ),
    ),
    Fault(
        "Gradients taken within other gradients are scaled a second time.",
        "tf_amp/training/tape_calls.py",
        "return _at_work.get()[0] or scale_at_run_time.is_differentiating()",
        "return scale_at_run_time.is_differentiating()",
        (
            f"{_GRADIENTS}/test_gradients.py::"
            "test_gradients_are_those_without_scaling_bit_by_bit_before_and_after_an_overflow"
            "[with_recomputation eager]",
        ),
    ),
    Fault(
        "Gradients asked for twice of one persistent tape count as two steps.",
        "tf_amp/training/tape_calls.py",
        "return record.calls[key].again()",
        "return record.calls[key]",
        (
            f"{_FINITENESS}/test_tape_counts.py::"
            "test_a_tape_that_is_asked_for_each_variable_counts_once",
        ),
    ),
    Fault(
        "Sparse gradients are not looked at before a step.",
        "tf_amp/training/finite_steps.py",
        "[g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]",
        "list(grads)",
        (f"{_OPTIMIZERS}/test_exact_skip.py::test_rows_of_a_table_stay",),
    ),
    Fault(
        "The gradients of tf.gradients in a graph are not scaled.",
        "tf_amp/training/gradients.py",
        "    install_hook(private.GRAPH_GRADIENTS, graph_gradients)\n",
        "",
        (f"{_GRADIENTS}/test_gradients_in_sessions.py",),
    ),
    Fault(
        "A loss that an optimizer scales itself is scaled once more.",
        "tf_amp/training/program_scaling.py",
        "    if is_scaled:\n        Code.SCALED_ALREADY",
        "    is_scaled = False\n    if is_scaled:\n        Code.SCALED_ALREADY",
        (
            f"{_OPTIMIZERS}/test_exact_skip.py::"
            "test_what_the_user_scales_is_not_scaled_again",
        ),
    ),
    Fault(
        "An overflow of inner gradients counts again for what is made of them.",
        "tf_amp/training/finite_steps.py",
        "return flags_of_calls(finite_flags.ancestry_of(gradients), [state])[0]",
        "return []",
        (
            f"{_GRADIENTS}/test_gradients.py::"
            "test_gradients_of_a_penalty_lower_the_scale_once",
        ),
    ),
    Fault(
        "A call for gradients that fails leaves its scale in force.",
        "tf_amp/training/scale_at_run_time.py",
        "                variable.assign(1.0)\n            raise",
        "                pass\n            raise",
        (
            f"{_GRADIENTS}/test_true_units.py::"
            "test_a_call_for_gradients_that_fails_leaves_no_scale_in_force",
        ),
    ),
)
_OF_SKIPPING = (
    Fault(
        "A step whose gradients overflowed is applied.",
        "tf_amp/training/optimizers.py",
        "finite = finite_step(step.grads, step.variables, step.optimizer)",
        "finite = None",
        (
            f"{_OPTIMIZERS}/test_exact_skip.py::"
            "test_every_variable_of_a_keras_optimizer_stays",
        ),
    ),
    Fault(
        "An overflow on one replica is not known to the others.",
        "tf_amp/training/scale_update.py",
        "return tf.equal(summed_over_replicas(against), 0.0)",
        "return finite",
        (
            f"{_TF_AMP}/training/test_loss_scaling_programs.py::"
            "test_an_overflow_on_either_replica_skips_the_step_on_both",
        ),
    ),
    Fault(
        "A step is skipped for the overflow of another optimizer's gradients.",
        "tf_amp/training/finite_steps.py",
        "    is_known = found.is_whole and are_all and not found.arguments\n",
        "    flags += [state.is_finite() for state in states]\n"
        "    is_known = found.is_whole and are_all and not found.arguments\n",
        (
            f"{_OPTIMIZERS}/test_exact_skip.py::"
            "test_two_losses_share_a_scale_or_have_their_own",
        ),
    ),
    Fault(
        "Gradients summed up by hand over several calls take in an overflow.",
        "tf_amp/training/assignments.py",
        '    "AssignAddVariableOp": _Assignment(_zeros, *_WHOLE),\n',
        "",
        (
            f"{_OPTIMIZERS}/test_exact_skip.py::"
            "test_accumulation_drops_only_the_step_that_overflowed",
        ),
    ),
    Fault(
        "A skipped step counts among the iterations of the optimizer.",
        "tf_amp/training/optimizers.py",
        "return step.take(step.grads) if finite else None",
        "return step.take(step.grads) if finite else "
        "step.optimizer.iterations.assign_add(1)",
        (f"{_OPTIMIZERS}/test_exact_skip.py::test_eager_steps_are_skipped_too",),
    ),
    Fault(
        "Each tower of one step lowers the loss scale by itself.",
        "tf_amp/training/finite_steps.py",
        "if len(waiting) < 2:",
        "if len(waiting) < 99:",
        (
            f"{_OPTIMIZERS}/test_towers.py::"
            "test_an_overflow_in_any_tower_skips_all_and_halves_once",
        ),
    ),
    Fault(
        "In a function compiled by XLA an overflow leaves the loss scale as it is.",
        "tf_amp/training/scale_update.py",
        "after = tf.where(finite, good.get(name, before), bad.get(name, before))",
        "after = tf.where(finite, good.get(name, before), before)",
        (
            f"{_TF_AMP}/rewriting/compiled/test_xla_training.py::"
            "test_fit_reaches_the_accuracy_of_float32_and_skips_what_overflows",
        ),
    ),
    Fault(
        "After an overflow a variable of a weight's shape takes nothing in any more.",
        "tf_amp/training/finite_flags.py",
        "finite = not any(map(bool, overflowed)) or bool(are_finite([value]))",
        "finite = not any(map(bool, overflowed))",
        (
            f"{_FINITENESS}/test_overflowed_values.py::"
            "test_what_eager_code_writes_by_hand_is_skipped",
        ),
    ),
)
_OF_FUSED_TRAINING = (
    Fault(
        "The fused step of Adam is taken without epsilon.",
        "tf_amp/training/optimizer_fusions.py",
        "        beta2=beta2,\n        epsilon=optimizer.epsilon,",
        "        beta2=beta2,\n        epsilon=0.0,",
        (
            f"{_FUSIONS}/test_fused_steps.py::"
            "test_a_hundred_steps_change_weights_and_slots_as_keras_does",
        ),
    ),
    Fault(
        "Rows twice in a sparse gradient are summed before they are squared.",
        "tf_amp/training/optimizer_fusions.py",
        "    squares = None\n    if is_sparse:\n",
        "    squares = None\n    if False:\n",
        (
            f"{_FUSIONS}/test_fused_steps.py::"
            "test_sparse_gradients_change_weights_as_keras_does",
        ),
    ),
    Fault(
        "A fused batch normalization keeps a variance with Bessel's correction.",
        "tf_amp/training/layer_fusions.py",
        "variance * ((count - 1.0) / count)",
        "variance * (count / count)",
        (
            f"{_FUSIONS}/test_batch_statistics.py::"
            "test_outputs_gradients_and_averages_are_those_of_keras",
        ),
    ),
)
_OF_CHECKPOINTS = (
    Fault(
        "A restored training begins with a fresh loss scale.",
        "tf_amp/training/checkpoint_record.py",
        "return {**saved.values, **chosen_values(loss_scale)}",
        "return {**fresh, **chosen_values(loss_scale)}",
        (f"{_CHECKPOINTS}/test_checkpoints.py::test_a_state_in_use_is_set_back",),
    ),
    Fault(
        "A Keras file is loaded with the loss scale of other weights.",
        "tf_amp/training/checkpoints.py",
        "record = next((one for one in records if one.step == key), None)",
        "record = next(iter(records), None)",
        (
            f"{_CHECKPOINTS}/test_checkpoints_keras.py::"
            "test_a_state_of_other_weights_is_not_used",
        ),
    ),
    Fault(
        "A restored training plans its graphs anew.",
        "tf_amp/training/checkpoints.py",
        "    host.current().memory.resume(kept.plans)\n",
        "",
        (f"{_CHECKPOINTS}/test_checkpoints.py::test_plans_go_with_a_checkpoint",),
    ),
    Fault(
        "A Saver cannot restore a checkpoint that was written without a loss scale.",
        "tf_amp/training/checkpoints.py",
        "restore(saver, _Feeding(sess, feeds) if feeds else sess, save_path)",
        "restore(saver, sess, save_path)",
        (
            f"{_CHECKPOINTS}/test_checkpoints_in_sessions.py::"
            "test_a_checkpoint_of_before_restores_and_the_scale_starts_fresh",
        ),
    ),
    Fault(
        "A model saved twice at one step has no record of the step before.",
        "tf_amp/training/checkpoint_record.py",
        "before = [one for one in read_beside(path) if one.step != record.step]",
        "before = list(read_beside(path))",
        (f"{_CHECKPOINTS}/test_checkpoint_records.py",),
    ),
)
IN_TRAINING: tuple[Fault, ...] = (
    *_OF_LOSS_SCALES,
    *_OF_GRADIENTS,
    *_OF_SKIPPING,
    *_OF_FUSED_TRAINING,
    *_OF_CHECKPOINTS,
)
