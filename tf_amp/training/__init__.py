"""Training in 16 bits: loss scales, gradients, skipped steps, checkpoints."""
