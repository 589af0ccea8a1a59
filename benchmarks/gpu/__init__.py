"""Training steps of the sizes that fill a GPU: ``python -m benchmarks.gpu``.

RESULTS.md and raw/ of this folder hold what was measured on machines with a GPU.
"""
