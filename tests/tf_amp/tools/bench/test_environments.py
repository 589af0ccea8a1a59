"""Which variables the process of a method has."""

from __future__ import annotations

import dataclasses

from tests.tf_amp.tools.bench.bench_samples import job_of
from tf_amp.config.amp_config import AmpConfig
from tf_amp.tools.bench.job import Run, environment_of, settings_of

USERS = {
    "HOME": "/home",
    "TF_ENABLE_AUTO_MIXED_PRECISION": "float16",
    "TF_AMP_EXCLUDE": "head/",
    "TF_AMP_CACHE": "own",
}


def variables(method: str, *, is_warm: bool = False) -> dict[str, str]:
    job = dataclasses.replace(job_of(), is_warm=is_warm, settings=settings_of(USERS))
    return environment_of(job, Run(method, 8, 0), USERS, "fresh")


def test_only_tf_amp_gets_settings_of_tf_amp() -> None:
    for method in ("float32", "float32 again", "keras", "tensorflow"):
        assert variables(method) == {
            "HOME": "/home",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_AMP_BENCH_BATCH": "8",
            "TF_AMP_CACHE": "fresh",
        }
    for method in ("tf-amp", "tf-amp:O2", "tf-amp:TUNE=off"):
        assert variables(method)["TF_AMP_EXCLUDE"] == "head/"


def test_the_database_of_costs_is_the_users_only_if_warm() -> None:
    assert variables("tf-amp")["TF_AMP_CACHE"] == "fresh"
    assert variables("tf-amp", is_warm=True)["TF_AMP_CACHE"] == "own"


def test_the_variable_of_the_batch_size_is_no_unknown_setting() -> None:
    assert AmpConfig.from_env(variables("tf-amp")).exclude == ("head/",)
