"""What several tests of converting start from."""

import pytest

from tests import stored_models


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return the folder of a SavedModel of Keras."""
    folder = tmp_path_factory.mktemp("given") / "model"
    stored_models.functional(folder)
    return folder
