"""The loss scale and the plans in every kind of checkpoint.

`record` says what is kept, `snapshot` takes it and puts it back, `resumed_plans`
decides graphs as a record says; the other modules put it into, or beside, what
TensorFlow and Keras write, by wrapping their functions: nothing of the user's changes.
"""
