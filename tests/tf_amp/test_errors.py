"""What tf_amp raises."""

import tf_amp


def test_all_errors_have_one_base_and_end_in_error():
    found = [getattr(tf_amp, name) for name in tf_amp.__all__]
    errors = [e for e in found if isinstance(e, type) and issubclass(e, Exception)]
    assert len(errors) == 13
    for error in errors:
        assert issubclass(error, tf_amp.AmpError)
        assert error.__name__.endswith("Error")
