"""One module per model.

Each has ``build() -> keras.Model``, ``loss()`` and, in NumPy,
``sample(rng, batch) -> (inputs, targets)``.

Every model ends in float32 logits, as the Keras guide on mixed precision asks, so
that the Keras policy is measured as a careful user would write it.
"""
