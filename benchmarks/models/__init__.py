"""One module per model, each with ``build() -> keras.Model``, ``loss()`` and
``sample(rng, batch) -> (inputs, targets)`` in NumPy.

Every model ends in float32 logits, as the Keras guide on mixed precision asks, so
that the Keras policy is measured as a careful user would write it.
"""
