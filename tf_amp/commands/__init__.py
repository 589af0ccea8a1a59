"""The commands of `tf-amp`, a module each, and what several of them share."""
