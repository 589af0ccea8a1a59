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
RULES = (
    CHANNEL_SCALES,
    LAYER_NORMS,
    FLAT_ACTIVATIONS,
    NORMALIZED_BIASES,
    KEPT_WEIGHTS,
    OPTIMIZER_STEPS,
    BATCH_STATISTICS,
    ROW_READS,
    GELU_GRADIENTS,
)
