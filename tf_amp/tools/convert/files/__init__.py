"""The files of stored models, read and written."""
