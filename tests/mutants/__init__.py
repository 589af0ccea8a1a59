"""Rooms with one operator or number changed at a time, and whether tests notice."""
