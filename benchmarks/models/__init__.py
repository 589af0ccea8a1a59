"""One module per model.

Each has ``build() -> keras.Model``, ``loss()`` and, in NumPy,
``sample(rng, batch) -> (inputs, targets)``. Models that are measured in several sizes
take those of their entry in the catalog by keyword, in ``build`` and in ``sample``.

Every model ends in float32 logits, as the Keras guide on mixed precision asks, so
that the Keras policy is measured as a careful user would write it.
"""
