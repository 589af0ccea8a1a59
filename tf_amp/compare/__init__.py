"""Compare float32 with 16 bits by the steps of a program; what that has shown."""
