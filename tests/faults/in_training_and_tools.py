"""Faults in training (`tf_amp`, `keras_callbacks`) and in tools."""

from __future__ import annotations

from tests.faults.fault import Fault
from tests.faults.training import IN_TRAINING

_TOOLS = "tests/tf_amp/tools"
_PLACEMENT = "tests/tf_amp/placement"
_TF_AMP = "tests/tf_amp"
_CALLBACKS = "tests/keras_callbacks"

_OF_CALLBACKS = (
    Fault(
        "The loss scale's callback forgets the steps of earlier epochs.",
        "keras_callbacks/loss_scale_monitor.py",
        "self.steps = self._steps_before + steps_up_to(batch, params)",
        "self.steps = steps_up_to(batch, params)",
        (
            f"{_CALLBACKS}/test_keras_monitors.py::"
            "test_where_nothing_is_scaled_the_scale_is_one_and_steps_are_counted",
        ),
    ),
    Fault(
        "After a fit the model keeps the training function that was put in for it.",
        "keras_callbacks/step_functions.py",
        "setattr(model, place, before)",
        "return",
        (
            f"{_CALLBACKS}/test_auto_mixed_precision.py::"
            "test_a_fit_is_in_mixed_precision_and_nothing_after_it",
        ),
    ),
    Fault(
        "Values of steps go to TensorBoard under the names of those of epochs.",
        "keras_callbacks/summaries.py",
        '_scalars("step/", read())',
        '_scalars("", read())',
        (
            f"{_CALLBACKS}/test_keras_monitors.py::"
            "test_tensorboard_has_the_scale_and_the_time_of_every_step",
        ),
    ),
    Fault(
        "Gradients are exchanged in float16 without a scale of their own.",
        "keras_callbacks/all_reduce.py",
        "exponent = _exponent(values) if self.is_scaled else None",
        "exponent = tf.constant(0.0) if self.is_scaled else None",
        (f"{_CALLBACKS}/test_all_reduce.py::test_sums_and_means_are_within_the_bound",),
    ),
)
_OF_COMPARISONS = (
    Fault(
        "Of two instances that were compared the slower one is called.",
        "tf_amp/compare/own_steps.py",
        "return self.float32 if self.is_faster is False else self.mixed",
        "return self.float32 if self.is_faster is True else self.mixed",
        (
            f"{_TF_AMP}/compare/test_own_steps.py::"
            "test_the_slow_instance_is_not_called_again_nor_in_the_next_process",
        ),
    ),
    Fault(
        "What steps have shown is taken for true of the same graph in another size.",
        "tf_amp/compare/fingerprint.py",
        "parts.append(repr(shapes.get(node.name)).encode())",
        'parts.append(b"shape")',
        (
            f"{_TF_AMP}/compare/test_fingerprint.py::"
            "test_sizes_that_a_graph_does_not_name_are_known_by_its_shapes",
        ),
    ),
    Fault(
        "Each worker of a job decides its plan by itself.",
        "tf_amp/rewriting/agreement.py",
        "if self.workers.is_chief or not is_joint(draft.graph_def):",
        "if self.workers or not is_joint(draft.graph_def):",
        (
            f"{_TF_AMP}/rewriting/test_workers_plans.py::"
            "test_a_worker_takes_the_plan_of_the_chief",
        ),
    ),
    Fault(
        "A setting that one worker has and another lacks is not noticed.",
        "tf_amp/rewriting/agreement.py",
        "own.keys() | said.keys()",
        "own.keys() & said.keys()",
        (
            f"{_TF_AMP}/rewriting/test_workers_plans.py::"
            "test_a_setting_that_one_worker_alone_has_is_told",
        ),
    ),
)
_OF_TOOLS = (
    Fault(
        "A converted model returns 16 bits where it returned float32.",
        "tf_amp/tools/convert/models.py",
        "fetch += _nodes_of(signature.outputs)",
        "fetch += []",
        (f"{_TOOLS}/convert/test_converting.py::test_all_signatures_stay",),
    ),
    Fault(
        "A variable that is to be stored in 16 bits is left as it is in the file.",
        "tf_amp/tools/convert/retyping.py",
        "keys = sorted(key for group in chosen for key in group.keys)",
        "keys = sorted(key for group in chosen for key in group.keys)[1:]",
        (f"{_TOOLS}/convert/test_converting.py::test_low_weights_halve_the_size",),
    ),
    Fault(
        "A constant that 16 bits cannot hold is stored as infinity.",
        "tf_amp/tools/convert/retyping.py",
        "if (np.isfinite(low) != np.isfinite(value)).any():",
        "if low.shape != value.shape:",
        (
            f"{_TOOLS}/convert/test_converting.py::"
            "test_a_constant_that_16_bits_cannot_hold_stays_float32",
        ),
    ),
    Fault(
        "verify holds what is beyond the tolerance, and nothing within.",
        "tf_amp/tools/verify/verification.py",
        "if check.mixed.relative <= self.tolerance:",
        "if check.mixed.relative >= self.tolerance:",
        (f"{_TOOLS}/verify/test_verify.py::test_a_sound_model_holds_in_both_types",),
    ),
    Fault(
        "ranges does not see negative values.",
        "tf_amp/tools/ranges.py",
        "magnitude = np.abs(value).ravel()",
        "magnitude = np.maximum(value, 0).ravel()",
        (
            f"{_TOOLS}/ranges/test_ranges.py::"
            "test_shares_are_what_a_cast_would_make_of_the_values",
        ),
    ),
    Fault(
        "explain prints seconds of float32 as those of 16 bits, and vice versa.",
        "tf_amp/tools/prediction.py",
        "(row.op, str(row.nodes), *_cells(row.float32), *_cells(row.mixed))",
        "(row.op, str(row.nodes), *_cells(row.mixed), *_cells(row.float32))",
        (
            f"{_TOOLS}/explain/test_prediction.py::"
            "test_a_row_prints_the_times_of_float32_before_those_mixed",
        ),
    ),
    Fault(
        "audit names what holds a plan back least first.",
        "tf_amp/tools/obstacles.py",
        "sorted(obstacles, key=lambda obstacle: -obstacle.lost_seconds)",
        "sorted(obstacles, key=lambda obstacle: obstacle.lost_seconds)",
        (
            f"{_TOOLS}/test_audit.py::"
            "test_a_layer_1001_wide_is_named_with_the_next_multiple_of_eight",
        ),
    ),
    Fault(
        "report marks each step after a skipped one as skipped.",
        "tf_amp/tools/job_page.py",
        "if count > before[n]]",
        "if count > 0]",
        (
            f"{_TOOLS}/report/test_record.py::"
            "test_of_the_steps_of_a_run_those_are_marked_that_were_skipped",
        ),
    ),
    Fault(
        "bench takes the mean of the steps of a process for their median.",
        "tf_amp/tools/bench/journal.py",
        "return median(self.step_seconds[len(self.step_seconds) // 2 :])",
        "late = self.step_seconds[len(self.step_seconds) // 2 :]\n"
        "        return sum(late) / len(late)",
        (f"{_TOOLS}/bench/test_journal.py",),
    ),
    Fault(
        "bench calls faster what is slower in one of its rounds.",
        "tf_amp/tools/bench/record.py",
        "if self.lowest > 1.0:",
        "if self.median > 1.0:",
        (f"{_TOOLS}/bench/test_record.py",),
    ),
    Fault(
        "Of several batches verify judges each tensor by its best.",
        "tf_amp/tools/verify/verifying.py",
        "worst = (max(column, key=badness) for column in columns)",
        "worst = (min(column, key=badness) for column in columns)",
        (
            f"{_TOOLS}/verify/test_verify.py::"
            "test_of_several_batches_each_tensor_is_judged_by_its_worst",
        ),
    ),
)
_OF_SETTINGS = (
    Fault(
        "A scope in a function that is traced holds outside of it, too.",
        "tf_amp/tracing/stack.py",
        "return self.graph is None or any(each is self.graph for each in functions)",
        "return True or any(each is self.graph for each in functions)",
        (
            f"{_TF_AMP}/runtime/test_scope.py::"
            "test_a_scope_in_a_function_does_not_hold_for_what_is_made_outside_of_it_meanwhile",
        ),
    ),
    Fault(
        "A setting of the environment is not read.",
        "tf_amp/config/amp_config.py",
        "            if texts.get(row.variable)\n",
        '            if texts.get(row.variable) and name != "exclude"\n',
        (
            f"{_TF_AMP}/config/test_config.py::"
            "test_every_field_makes_a_round_trip_through_the_environment",
        ),
    ),
    Fault(
        "A word such as no switches a setting on.",
        "tf_amp/config/setting_values.py",
        'raise refusal(name, value, "are True and False")',
        "return bool(value)",
        (
            f"{_TF_AMP}/config/test_config.py::"
            "test_a_wrong_argument_is_quoted_with_what_is_allowed",
        ),
    ),
    Fault(
        "disable leaves a method of TensorFlow decorated.",
        "tf_amp/runtime/switch.py",
        "private.remove(kept)",
        "private.remove([*kept, private.CREATE_OP])",
        (
            f"{_TF_AMP}/runtime/test_runtime.py::"
            "test_settings_hold_for_functions_traced_under_them",
        ),
    ),
    Fault(
        "What a scope excludes takes the place of what enable does.",
        "tf_amp/runtime/scope.py",
        "patterns = tuple(dict.fromkeys((*base.exclude, *exclude)))",
        "patterns = exclude or base.exclude",
        (
            f"{_TF_AMP}/runtime/test_scope.py::"
            "test_what_a_scope_excludes_adds_to_what_enable_does",
        ),
    ),
    Fault(
        "A scope that is left stays in force.",
        "tf_amp/tracing/stack.py",
        "        _stack.set(layers[:-1])\n",
        "        left = dataclasses.replace(layers[-1], owner=None)\n"
        "        _stack.set((left, *layers[:-1]))\n",
        (
            f"{_TF_AMP}/runtime/test_scope.py::"
            "test_a_scope_holds_for_what_is_traced_inside_wherever_it_is_called",
        ),
    ),
)
_OF_BLOCKS_AND_PLACES = (
    Fault(
        "The gradient of a block-sparse product goes through blocks as they are.",
        "tf_amp/block_sparse/product.py",
        "flipped = tf.transpose(blocks, (0, 2, 1))",
        "flipped = blocks",
        (
            f"{_TF_AMP}/block_sparse/test_product.py::"
            "test_products_and_gradients_of_both_orders_are_the_dense_ones",
        ),
    ),
    Fault(
        "Blocks get each other's gradients.",
        "tf_amp/block_sparse/product.py",
        "return _in_order(products, grouping.block_order)",
        "return products[0] if len(products) == 1 else tf.concat(products, 0)",
        (
            f"{_TF_AMP}/block_sparse/test_product.py::"
            "test_products_and_gradients_of_both_orders_are_the_dense_ones",
        ),
    ),
    Fault(
        "An offloaded optimizer puts a stale copy in place of an assigned weight.",
        "tf_amp/placement/offloading.py",
        "tf.reduce_any(tf.not_equal(sample, seen))",
        "tf.reduce_any(tf.not_equal(sample, sample))",
        (
            f"{_PLACEMENT}/test_offload_optimizer.py::"
            "test_weights_that_others_put_in_another_order_stay_in_it",
        ),
    ),
    Fault(
        "The shares of a batch do not sum up to it.",
        "tf_amp/placement/shares.py",
        "while sum(counts) < global_batch:",
        "while sum(counts) < global_batch - 1:",
        (
            f"{_PLACEMENT}/test_batch_shares.py::"
            "test_shares_sum_to_the_batch_and_none_is_idle",
        ),
    ),
    Fault(
        "A large tensor crosses between devices as quickly as a small one.",
        "tf_amp/placement/cut.py",
        "return self.seconds_per_transfer + tensor_bytes / self.bytes_per_second",
        "return self.seconds_per_transfer",
        (
            f"{_PLACEMENT}/test_precision_affinity.py::"
            "test_products_move_to_the_device_that_is_fast_in_16_bits_where_that_pays",
        ),
    ),
    Fault(
        "An offloaded optimizer rounds weights that have no gradient.",
        "tf_amp/placement/offloading.py",
        "for variable in [v for gradient, v in pairs if gradient is not None]:",
        "for variable in variables:",
        (
            f"{_PLACEMENT}/test_offload_optimizer.py::"
            "test_16_bit_transfers_round_and_the_host_keeps_float32_weights",
        ),
    ),
)
FAULTS: tuple[Fault, ...] = (
    *IN_TRAINING,
    *_OF_CALLBACKS,
    *_OF_COMPARISONS,
    *_OF_TOOLS,
    *_OF_SETTINGS,
    *_OF_BLOCKS_AND_PLACES,
)
