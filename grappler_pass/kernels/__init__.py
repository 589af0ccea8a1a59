"""Which of TensorFlow's 16-bit kernels compute wrong numbers, and where.

A kernel here is an op with all that decides which code computes it. `known_wrong` is
the table of those that are known; what runs the others first is not in this package.
"""
