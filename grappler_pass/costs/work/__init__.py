"""What a call of an op has to do: flops, bytes, and the class it is priced in."""
