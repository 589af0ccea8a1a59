"""What can be caught, by its name."""

import builtins
import inspect
import re
from itertools import chain

import tf_amp


def test_all_errors_have_one_base_and_end_in_error():
    found = [getattr(tf_amp, name) for name in tf_amp.__all__]
    errors = [e for e in found if isinstance(e, type) and issubclass(e, Exception)]
    assert len(errors) == 15
    for error in errors:
        assert issubclass(error, tf_amp.AmpError)
        assert error.__name__.endswith("Error")


def test_errors_that_public_docstrings_name_are_public():
    public = [getattr(tf_amp, name) for name in tf_amp.__all__]
    methods = [vars(each).values() for each in public if isinstance(each, type)]
    texts = [inspect.getdoc(each) or "" for each in chain(public, *methods)]
    named = set(re.findall(r"^\s*(\w+Error)\b.*:", "\n".join(texts), re.MULTILINE))
    ours = {name for name in named if not hasattr(builtins, name)}
    assert len(ours) >= 10
    assert ours <= {*tf_amp.__all__}
