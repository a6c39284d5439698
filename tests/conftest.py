"""Profiles of Hypothesis, and one thread: the models of the tests are small."""

from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, Phase, settings

torch.set_num_threads(1)

settings.register_profile("dev", max_examples=20, deadline=None)
settings.register_profile(
    "ci", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("thorough", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A mutant is killed by the first failure: few examples, the same for every mutant, and nothing is shrunk.
settings.register_profile(
    "mutation",
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
