"""The published experiments on quality, redone: ``python -m evidence --all``.

Fixed before the first run, alike for every family and method: eight seeds, the steps,
the metric after the last of them, a paired t-test against float32, and Holm's
correction for all comparisons. Sizes are such that all runs take some 70 minutes of a
core, and that float32 still learns what no untrained model knows; they were chosen by
float32 with seed 99, which does not count. No time is kept, so that runs may go beside
other work.
"""
