"""Compare float32 with 16 bits, by steps and kernels; what that has shown."""
