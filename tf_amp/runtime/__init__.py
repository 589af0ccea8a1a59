"""Mixed precision switched on and off, for a process and for a part of a program."""
