"""Run 16-bit kernels before a plan uses them, and remember which are wrong."""
