"""Steps of optimizers, and how those are skipped whose gradients overflowed."""
