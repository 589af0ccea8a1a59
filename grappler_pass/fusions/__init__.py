"""Rewrites beside types: fewer passes over large tensors, in float32 as in 16 bits."""

CHANNEL_SCALES = "channel_scales"
LAYER_NORMS = "layer_norms"
FLAT_ACTIVATIONS = "flat_activations"
NORMALIZED_BIASES = "normalized_biases"
KEPT_WEIGHTS = "kept_weights"
# By what traces the program: graphs arrive with it.
OPTIMIZER_STEPS = "optimizer_steps"
BATCH_STATISTICS = "batch_statistics"
ROW_READS = "row_reads"
GELU_GRADIENTS = "gelu_gradients"
# What each saves, in the order in which they run: constants of a normalization wait for
# what activates its input.
GAINS = {
    CHANNEL_SCALES: "scales and shifts of channels are part of the product's kernel",
    FLAT_ACTIVATIONS: "bias and activation are part of the product's kernel",
    LAYER_NORMS: "one kernel in place of eight passes",
    NORMALIZED_BIASES: "no bias is added, nor its gradient summed up, which is zero",
    KEPT_WEIGHTS: "computed once, until a variable changes",
    OPTIMIZER_STEPS: "one kernel in place of up to a dozen passes over the weight",
    BATCH_STATISTICS: "one kernel each way in place of several passes",
    ROW_READS: "rows are read without a copy of their table",
    GELU_GRADIENTS: "one tensor is kept for the gradient in place of three",
}
RULES = tuple(GAINS)
