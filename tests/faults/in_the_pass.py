"""Faults in the pass: `grappler_pass`, and what of `tf_amp` hands graphs to it."""

from __future__ import annotations

from tests.faults.fault import Fault

_PASS, _TF_AMP = "tests/grappler_pass", "tests/tf_amp"
_CASTS = "grappler_pass/planning/draft.py"
_RULES = "grappler_pass/eligibility/rules.py"
_TIES = "grappler_pass/eligibility/ties.py"
_ELIGIBILITY = "grappler_pass/eligibility"
_SENSITIVITY = f"{_ELIGIBILITY}/sensitivity.py"
_CARRIED = f"{_ELIGIBILITY}/carried_errors.py"
_CUT = "grappler_pass/planning/assignment.py"
_SECONDS = "grappler_pass/planning/prices.py"

_COLORING = f"{_PASS}/rewriting/test_patterns_coloring.py"
_REWRITING = f"{_PASS}/rewriting/test_rewriting.py"
_CASES = f"{_PASS}/eligibility/test_cases.py"

_OF_CASTS = (
    Fault(
        "A cast to float32 is left out.",
        _CASTS,
        "            needed = low_dtype if reads_low else FLOAT32\n",
        "            needed = low_dtype if reads_low else FLOAT32\n"
        "            if needed == FLOAT32 and not is_cast(node):\n"
        "                continue\n",
        (_COLORING,),
    ),
    Fault(
        "A tensor is cast again for each of its readers.",
        _CASTS,
        "alone = node.index if reader in reads.refs.late else _SHARED",
        "alone = node.index",
        (_COLORING,),
    ),
    Fault(
        "A cast to float32 runs with the producer, so that 32 bits cross devices.",
        _CASTS,
        "device = node.device if needed == FLOAT32 else producer.device",
        "device = producer.device",
        (_COLORING, _REWRITING, f"{_PASS}/planning/test_movement.py"),
    ),
    Fault(
        "A cast to 16 bits cuts digits off instead of rounding.",
        "grappler_pass/eligibility/fused_ops.py",
        '"Truncate": False}',
        '"Truncate": True}',
        (_COLORING, _REWRITING),
    ),
    Fault(
        "A weight that a loop only reads is cast in every iteration.",
        _CASTS,
        "        hoist=reads.hoists.get(port, ()),\n",
        "",
        (_REWRITING,),
    ),
    Fault(
        "Several reads of one variable are cast one by one.",
        _CASTS,
        "shared = reads.canonical.get(port, port) if needed == low_dtype else port",
        "shared = port",
        (_COLORING,),
    ),
    Fault(
        "Two reads of a variable share a cast though a write lies between them.",
        "grappler_pass/eligibility/reads.py",
        "if all(_not_between(leader, read, w, before) for w in writers):",
        "if leader != read:",
        (f"{_PASS}/eligibility/test_variable_reads.py", _COLORING),
    ),
    Fault(
        "A read of a ref variable that a write may follow shares its cast.",
        _CASTS,
        "alone = node.index if reader in reads.refs.late else _SHARED",
        "alone = _SHARED",
        (f"{_PASS}/rewriting/test_effects.py",),
    ),
    Fault(
        "What waited for a variable's read no longer does once it reads a cast.",
        "grappler_pass/rewriting/apply.py",
        'graph.wait(node.name, [f"^{view.nodes[i].name}" for i in awaited])\n',
        "pass\n",
        (f"{_PASS}/rewriting/test_effects.py",),
    ),
    Fault(
        "Whole numbers that float32 does not hold are cast to 16 bits at once.",
        "grappler_pass/eligibility/reads.py",
        "        types_pb2.DT_BOOL,\n",
        "        types_pb2.DT_BOOL,\n        types_pb2.DT_INT32,\n",
        (f"{_PASS}/eligibility/test_casts.py",),
    ),
)
_OF_ELIGIBILITY = (
    Fault(
        "An op on the deny list goes to 16 bits.",
        _RULES,
        "    if case.uses_lists and place.list_name == DENY:\n",
        "    if case.uses_lists and node.op == DENY:\n",
        (_CASES,),
    ),
    Fault(
        "An infer op behind a denied one goes to 16 bits.",
        _RULES,
        "    _walk(Cause.DENY_TAINT, _deny_taint, of_lists=True),\n",
        "",
        (_CASES,),
    ),
    Fault(
        "Low precision spreads to what reads a product, and not to what it reads.",
        "grappler_pass/eligibility/rules.py",
        "both_ways = list(map(operator.add, edges.readers, edges.sources))",
        "both_ways = edges.readers",
        (_CASES, _COLORING),
    ),
    Fault(
        "The arithmetic of an optimizer goes to 16 bits.",
        _RULES,
        "lambda c: state_update_region(c.view, c.lists)",
        "lambda c: ()",
        (_CASES,),
    ),
    Fault(
        "What comes behind the unscaling of gradients goes to 16 bits.",
        _RULES,
        "lambda c: behind_barriers(c.view)",
        "lambda c: ()",
        (_CASES,),
    ),
    Fault(
        "The value that each iteration of a loop computes with is rounded before it.",
        _SENSITIVITY,
        "        if node.index in self._repeated:\n            return Cause.REPEATED\n",
        "",
        (_CASES,),
    ),
    Fault(
        "A comparison with a maximum has another type than the maximum.",
        _TIES,
        "    _selections,\n",
        "",
        (f"{_PASS}/eligibility/test_selections.py", _CASES),
    ),
    Fault(
        "A whole number on its way to an index passes through 16 bits.",
        f"{_ELIGIBILITY}/regions.py",
        "                to_integer += own\n",
        "                pass\n",
        (_CASES,),
    ),
    Fault(
        "A random draw is compared in 16 bits.",
        f"{_ELIGIBILITY}/regions.py",
        "            magnified += own\n",
        "            pass\n",
        (_CASES,),
    ),
    Fault(
        "A constant of -1e9 becomes infinite in float16.",
        f"{_ELIGIBILITY}/regions.py",
        "            large.append(own[0])\n",
        "            pass\n",
        (_CASES,),
    ),
    Fault(
        "A pattern that excludes an op does not exclude its gradients.",
        "grappler_pass/eligibility/exclusions.py",
        "    if not inner:\n        return\n",
        "    return\n",
        (_CASES,),
    ),
    Fault(
        "What is fetched or fed may change its type.",
        _RULES,
        "    if node.name in case.view.item.untouchable:\n",
        "    if node.name in case.view.item.untouchable and case.fault_of is None:\n",
        (_CASES, _COLORING),
    ),
    Fault(
        "The two ends of a reserve space of cuDNN have different types.",
        _TIES,
        "        pairs += floats((ends[0], slot) for slot in ends)\n",
        "        pass\n",
        (_CASES,),
    ),
    Fault(
        "A loop variable changes its type on its way around the loop.",
        _TIES,
        "    _loops,\n",
        "",
        (_CASES,),
    ),
    Fault(
        "A float16 kernel of a CPU is chosen for a layout that it refuses.",
        f"{_ELIGIBILITY}/known_wrong.py",
        "    if not ends_in_channels(proto):\n        return True\n",
        "",
        (f"{_PASS}/eligibility/test_fused_half.py",),
    ),
)
_OF_SENSITIVITY = (
    Fault(
        "An activation is rounded before something of its size is subtracted.",
        _SENSITIVITY,
        '("SUMS", Cause.NO_PRODUCT, Cause.NEAR_NUMBERS, Exposure.HIDDEN)',
        '("SUMS", Cause.NO_PRODUCT, Exposure.PASSES, Exposure.HIDDEN)',
        (_CASES,),
    ),
    Fault(
        "The argument of a logarithm is rounded.",
        _SENSITIVITY,
        '("MAGNIFIES", Cause.MAGNIFIED, Cause.MAGNIFIED, Cause.MAGNIFIED)',
        '("MAGNIFIES", Cause.MAGNIFIED, Exposure.PASSES, Cause.MAGNIFIED)',
        (_CASES,),
    ),
    Fault(
        "Summands that cancel, as in the gradient of a softmax, are rounded.",
        _SENSITIVITY,
        "self._cancelled = self._cancelling()",
        "self._cancelled = dict[Port, Reason]()",
        (_CASES,),
    ),
    Fault(
        "Any number of residual sums in a row is rounded after each.",
        _CARRIED,
        "LONGEST_CHAIN = 4\n",
        "LONGEST_CHAIN = 400\n",
        (_CASES,),
    ),
    Fault(
        "A bias is taken to be no larger than the product it is fused with.",
        _CARRIED,
        "error=min(carried.error, Error.BIASED)",
        "error=carried.error",
        (_CASES, _REWRITING),
    ),
)
_OF_KERNELS = (
    Fault(
        "A kernel known to be wrong for rows from 64 values on is used at 64.",
        "grappler_pass/eligibility/known_wrong.py",
        "return is_whole and _above(row, 63) and _below(depth, 32)",
        "return is_whole and _above(row, 64) and _below(depth, 32)",
        (f"{_PASS}/eligibility/test_known_wrong.py",),
    ),
    Fault(
        "A kernel that an earlier check has found wrong is used.",
        "tf_amp/checking/known.py",
        'return "" if compiled or known is None else known.fault(kernel.key)',
        'return ""',
        (f"{_TF_AMP}/checking/test_checked_plans.py",),
    ),
    Fault(
        "A check takes wrong kernels for right and right ones for wrong.",
        "tf_amp/checking/known.py",
        "        if draw.wrong:\n",
        "        if not draw.wrong:\n",
        (f"{_TF_AMP}/checking/test_running.py",),
    ),
)
_OF_COSTS = (
    Fault(
        "A cast costs nothing.",
        _SECONDS,
        "            price = price._replace(seconds=price.seconds + NODE_SECONDS)\n"
        "        return price\n",
        "            price = price._replace(seconds=price.seconds + NODE_SECONDS)\n"
        "        return price._replace(seconds=0.0)\n",
        (f"{_PASS}/planning/test_pricing.py",),
    ),
    Fault(
        "Every op takes twice as long in 16 bits as it does.",
        _SECONDS,
        "                low.append(self.price(node, self._low_dtype))\n",
        "                price = self.price(node, self._low_dtype)\n"
        "                low.append(price._replace(seconds=2.0 * price.seconds))\n",
        (f"{_PASS}/planning/test_pricing.py",),
    ),
    Fault(
        "What an op moves is counted in bits.",
        "grappler_pass/costs/calls.py",
        "    return float(sum(spec.bytes_as(dtype)",
        "    return 8.0 * float(sum(spec.bytes_as(dtype)",
        (f"{_PASS}/costs/test_costs.py",),
    ),
    Fault(
        "To start an op takes no time.",
        "grappler_pass/costs/roofline.py",
        "work.times * (self.overhead_seconds + busy)",
        "work.times * busy",
        (f"{_PASS}/costs/test_costs.py", f"{_PASS}/costs/test_costs_properties.py"),
    ),
    Fault(
        "A CPU of Intel is priced as one of AMD, and the other way around.",
        "grappler_pass/costs/device_profile.py",
        'return "cpu-intel-avx512-bf16" if intel else "cpu-avx512-bf16"',
        'return "cpu-avx512-bf16" if intel else "cpu-intel-avx512-bf16"',
        (f"{_PASS}/costs/test_device_profile.py",),
    ),
    Fault(
        "What runs in a loop is charged for one iteration.",
        _SECONDS,
        "return 0.0 if is_fused else self._view.weight(node.index)",
        "return 0.0 if is_fused else 1.0",
        (f"{_PASS}/planning/test_pricing.py",),
    ),
    Fault(
        "What crosses devices takes as long in 16 bits as in 32.",
        _SECONDS,
        "share = seconds / 2 if goes_low else seconds",
        "share = seconds",
        (f"{_PASS}/planning/test_pricing.py",),
    ),
    Fault(
        "One of three readers is charged a third of the cast that it needs.",
        _CUT,
        "*((joint, end, np.inf) for end in sorted(ends))]",
        "*((joint, end, seconds / len(ends)) for end in sorted(ends))]",
        (f"{_PASS}/planning/test_assignment.py",),
    ),
    Fault(
        "A cast is charged once for each of its readers.",
        _CUT,
        "    if len(ends) == 1:\n",
        "    if ends:\n",
        (f"{_PASS}/planning/test_assignment.py",),
    ),
)
_OF_REWRITES = (
    Fault(
        "A fused normalization has no epsilon.",
        "grappler_pass/fusions/normalizations.py",
        'kernel.attr["epsilon"].f = _scalar(graph.view, found.ports["epsilon"]) or 0.0',
        'kernel.attr["epsilon"].f = 0.0',
        (f"{_PASS}/fusions/test_layer_norms.py",),
    ),
    Fault(
        "A normalization whose mean is read elsewhere is fused.",
        "grappler_pass/fusions/matching.py",
        "            or not own.issuperset(graph.view.read_by(node.index))\n",
        "",
        (f"{_PASS}/fusions/test_cases.py",),
    ),
    Fault(
        "A LeakyRelu that was fused gets another alpha when it is split off.",
        "grappler_pass/eligibility/fused_ops.py",
        'node.attr["alpha"].f = proto.attr["leakyrelu_alpha"].f',
        'node.attr["alpha"].f = 0.2',
        (f"{_PASS}/graph/test_fusions.py", _REWRITING),
    ),
    Fault(
        "Scales of channels go to the wrong axis of transposed weights.",
        "grappler_pass/fusions/products.py",
        "            return (*self._vector, 1)\n",
        "            return self._vector\n",
        (f"{_PASS}/fusions/test_channel_scales.py",),
    ),
    Fault(
        "A bias is taken out in front of a normalization by moving statistics.",
        "grappler_pass/fusions/normalizations.py",
        "return bool(is_training.b and factor.f == 1.0",
        "return bool(factor.f == 1.0",
        (f"{_PASS}/fusions/test_cases.py",),
    ),
    Fault(
        "A weight is kept between calls though the graph itself writes it.",
        "grappler_pass/eligibility/reads.py",
        "for key in reads.keys() - written.keys() for i in reads[key]",
        "for key in reads.keys() for i in reads[key]",
        (f"{_PASS}/fusions/test_cases.py",),
    ),
    Fault(
        "Bodies of loops and branches under XLA stay in float32.",
        "grappler_pass/functions/bodies.py",
        "self._wanted = set(reached(allowing, callers.__getitem__))",
        "self._wanted = set[str]()",
        (f"{_PASS}/functions/test_bodies.py",),
    ),
    Fault(
        "A result of a function that is rewritten changes its type.",
        "grappler_pass/functions/conversion.py",
        "Item(fetch=results, feed=arguments, preserve=kept)",
        "Item(fetch=(), feed=arguments, preserve=kept)",
        (f"{_PASS}/functions/test_functions.py",),
    ),
    Fault(
        "Transposes that do not undo each other are taken out.",
        "grappler_pass/rewriting/layouts.py",
        "len(first) == len(order) and [first[i] for i in order] == sorted(first):",
        "len(first) == len(order):",
        (f"{_PASS}/rewriting/test_layouts.py",),
    ),
    Fault(
        "A graph is accepted that reads what no node writes.",
        "grappler_pass/rewriting/verify.py",
        '                yield f"input {text!r} of {node.name!r} names no node"\n',
        "",
        (f"{_PASS}/rewriting/test_verify_rewrite.py",),
    ),
)
_OF_THE_HOST = (
    Fault(
        "A pass that fails interrupts the program.",
        "grappler_pass/plugin.py",
        'logging.warning("A graph passes through unchanged.", exc_info=True)\n'
        "            return _UNCHANGED",
        'logging.warning("A graph passes through unchanged.", exc_info=True)\n'
        "            return _INTERRUPTED",
        (
            "tests/test_shim.py::test_what_the_callback_returns_runs_and_all_else_"
            "leaves_the_result_alone",
        ),
    ),
    Fault(
        "A plan names its costs as the reason of what rounding harms.",
        "grappler_pass/planning/decisions.py",
        "    if draft.constraints.eligible[slot]:\n",
        "    if draft.fallback:\n",
        (f"{_PASS}/planning/test_golden_plans.py", f"{_PASS}/planning/test_trying.py"),
    ),
    Fault(
        "What is written as the graph after its rewrite is the one before.",
        "tf_amp/rewriting/dumps.py",
        'texts["after.pbtxt"] = lambda: str(rewrite.graph_def)',
        'texts["after.pbtxt"] = lambda: str(before)',
        (f"{_TF_AMP}/rewriting/test_log.py",),
    ),
    Fault(
        "A function that was traced without mixed precision is rewritten with others.",
        "tf_amp/tracing/stamp_reader.py",
        "strangers = tuple(name for name in names if owner_of(name) != settings)",
        "strangers = ()",
        (f"{_TF_AMP}/tracing/test_stamps.py",),
    ),
    Fault(
        "Gradients of what is in a float32 scope go to 16 bits.",
        "tf_amp/tracing/stamps.py",
        'why = why_float32 or (forward.float32 if forward is not None else "")',
        "why = why_float32",
        (f"{_TF_AMP}/runtime/test_float32_scope.py",),
    ),
)
_OF_LEARNING = (
    Fault(
        "A single reading of a kernel corrects its price.",
        "grappler_pass/costs/model.py",
        "FEWEST_READINGS, MOST_READINGS = 3, 9\n",
        "FEWEST_READINGS, MOST_READINGS = 1, 9\n",
        ("tests/grappler_pass/costs/test_learned.py",),
        (
            (
                "> 1 else math.inf\n",
                "> 1 else 0.0\n",
            ),
        ),
    ),
    Fault(
        "Readings that disagree correct a price.",
        "grappler_pass/costs/model.py",
        "AGREEMENT = 0.2\n",
        "AGREEMENT = 20.0\n",
        ("tests/grappler_pass/costs/test_learned.py",),
    ),
    Fault(
        "A plan is certain though its prices are those of another device.",
        "grappler_pass/planning/coloring.py",
        "    return elsewhere <= CERTAIN_SHARE * sum",
        "    return elsewhere >= 0.0 * sum",
        ("tests/grappler_pass/planning/test_trying.py",),
    ),
    Fault(
        "What steps have shown is not remembered by the process.",
        "tf_amp/compare/verdicts.py",
        "        self._faster[fingerprint] = is_faster\n",
        "        pass\n",
        ("tests/tf_amp/compare/test_kept_file.py",),
    ),
    Fault(
        "What one process learns takes away what another has.",
        "tf_amp/compare/verdicts.py",
        "            known = _devices_in(fields)\n",
        "            known: dict[str, Fields] = {}\n",
        ("tests/tf_amp/compare/test_kept_file.py",),
    ),
    Fault(
        "A difference within the clock's noise is a reading.",
        "tf_amp/calibrate/rounds.py",
        "if difference > _BEYOND_NOISE * error else None",
        "if difference else None",
        ("tests/tf_amp/calibrate/test_calibration.py",),
    ),
)
FAULTS: tuple[Fault, ...] = (
    *_OF_CASTS,
    *_OF_ELIGIBILITY,
    *_OF_SENSITIVITY,
    *_OF_KERNELS,
    *_OF_COSTS,
    *_OF_REWRITES,
    *_OF_THE_HOST,
    *_OF_LEARNING,
)
