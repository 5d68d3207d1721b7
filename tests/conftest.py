"""Fixtures that every test may take."""

import pytest

# Shared suites are no test modules of their own, but their assertions should explain themselves all the same.
pytest.register_assert_rewrite(
    *(f"tests.contract.{name}" for name in ("quota_suite", "quota_loans", "quota_bench", "world", "simulated_world")),
    "tests.contract.bank_suite",
    "tests.contract.failsafe_suite",
    "tests.contract.kubelet_suite",
    "tests.contract.kubelet_world",
    "tests.contract.kueue_world",
    "tests.support.audit",
    "tests.support.bank",
    "tests.support.realnode",
)

pytest_plugins = (
    "tests.plugins.lab",  # first: others import it
    "tests.plugins.bank",
    "tests.plugins.core",
    "tests.plugins.docs",
    "tests.plugins.exit",
    "tests.plugins.garbage",
    "tests.plugins.groups",
    "tests.plugins.kubelet",
    "tests.plugins.ledger",
    "tests.plugins.nvml",
    "tests.plugins.prometheus",
)
