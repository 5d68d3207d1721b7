"""Fixtures that every test may take."""

import pytest

# Shared suites are no test modules of their own, but their assertions should explain themselves all the same.
pytest.register_assert_rewrite("tests.contract.quota_suite", "tests.contract.world", "tests.contract.simulated_world")

pytest_plugins = ("tests.plugins.lab", "tests.plugins.ledger")
