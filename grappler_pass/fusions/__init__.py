"""Fusions: fewer passes over large tensors, in float32 as in 16 bits."""

from collections.abc import Mapping
from typing import NamedTuple

# Those that other code asks for by name.
CHANNEL_SCALES = "channel_scales"
FLAT_ACTIVATIONS = "flat_activations"
SHARED_SCALARS = "shared_scalars"
KEPT_WEIGHTS = "kept_weights"
OPTIMIZER_STEPS = "optimizer_steps"
BATCH_STATISTICS = "batch_statistics"
ROW_READS = "row_reads"
GELU_GRADIENTS = "gelu_gradients"


class Rule(NamedTuple):
    """What a rewrite saves, and the function that finds where.

    Attributes:
      gain: human-readable.
      matches: the function of a module here that yields its matches, as text: settings
        read the names of rules without TensorFlow. Empty where `scalars` or
        `kept_weights` finds them, and where what traces the program writes the
        kernels: graphs arrive so.
    """

    gain: str
    matches: str = ""


# In the order in which they run: constants of a normalization wait for what activates
# its input.
RULE_TABLE: Mapping[str, Rule] = {
    CHANNEL_SCALES: Rule(
        "scales and shifts of channels are part of the product's kernel",
        "products:folds",
    ),
    FLAT_ACTIVATIONS: Rule(
        "bias and activation are part of the product's kernel", "rows:rows"
    ),
    "transposed_products": Rule(
        "a product is computed transposed", "products:transposed_products"
    ),
    "summed_products": Rule(
        "up to eight products are one, which adds them up",
        "products:summed_products",
    ),
    "layer_norms": Rule(
        "one kernel in place of eight passes", "normalizations:normalizations"
    ),
    "normalized_biases": Rule(
        "no bias is added, nor its gradient summed up, which is zero",
        "normalizations:normalized_biases",
    ),
    "recurrent_products": Rule(
        "one product of all steps in place of one per step", "recurrences:products"
    ),
    "loop_sums": Rule(
        "one product of all steps in place of one per step and their sum",
        "loop_sums:sums",
    ),
    "loop_products": Rule(
        "one product of all steps, after the loop, in place of one per step",
        "loop_products:products",
    ),
    "weight_blocks": Rule(
        "the blocks of a product's weights stay in a core's cache", "blocks:products"
    ),
    SHARED_SCALARS: Rule("what updates compute of the same scalar is computed once"),
    KEPT_WEIGHTS: Rule("computed once, until a variable changes"),
    OPTIMIZER_STEPS: Rule(
        "one kernel in place of up to a dozen passes over the weight"
    ),
    BATCH_STATISTICS: Rule("one kernel each way in place of several passes"),
    ROW_READS: Rule("rows are read without a copy of their table"),
    GELU_GRADIENTS: Rule("one tensor is kept for the gradient in place of three"),
}
RULES = tuple(RULE_TABLE)
