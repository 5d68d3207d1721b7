"""Fixtures that every test may take."""

pytest_plugins = ("tests.plugins.lab", "tests.plugins.ledger")
