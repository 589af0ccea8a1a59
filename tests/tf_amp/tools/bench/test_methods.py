"""What a list of methods stands for."""

from __future__ import annotations

import pytest

from tf_amp.errors import ConfigError
from tf_amp.tools.bench.job import methods_from_text, settings_of_method


def test_float32_and_its_repetition_are_always_measured_first() -> None:
    assert methods_from_text("tf-amp:o2, keras") == (
        "float32",
        "float32 again",
        "tf-amp:O2",
        "keras",
    )


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("keras", {}),
        ("tf-amp", {}),
        ("tf-amp:O2", {"TF_AMP_OPT_LEVEL": "O2"}),
        ("tf-amp:TUNE=on", {"TF_AMP_TUNE": "on"}),
        (
            "tf-amp:TIE=0.1+DTYPE=float16",
            {"TF_AMP_TIE": "0.1", "TF_AMP_DTYPE": "float16"},
        ),
        (
            "tf-amp:O3+EXCLUDE=a+b head=1+FUSE=off",
            {
                "TF_AMP_OPT_LEVEL": "O3",
                "TF_AMP_EXCLUDE": "a+b head=1",
                "TF_AMP_FUSE": "off",
            },
        ),
    ],
)
def test_what_stands_behind_tf_amp_are_its_settings(
    method: str, settings: dict[str, str]
) -> None:
    assert methods_from_text(method)[-1] == method
    assert settings_of_method(method) == settings


@pytest.mark.parametrize(
    "text",
    [
        *("jax", "", "tf-amp:", "tf-amp:O7", "tf-amp:O7+TUNE=off", "keras:O2"),
        *(
            "keras:TUNE=off",
            "tf-amp:CACHE=x",
            "tf-amp:SPEED=1",
            "tf-amp:TUNE=",
            "tf-amp:TUNE=off+O2",
        ),
    ],
)
def test_an_unknown_method_is_named_with_those_allowed(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        methods_from_text(text)
    said = str(refused.value)
    assert "--methods: received " in said and "\n" not in said
    assert "allowed are" in said


def test_an_unknown_value_is_named_with_those_allowed() -> None:
    with pytest.raises(
        ConfigError, match=r"'tf-amp:TUNE=x'; TF_AMP_TUNE: received 'x'"
    ):
        methods_from_text("tf-amp:TUNE=x")
