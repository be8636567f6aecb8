"""What every test may use: see tests/fixtures."""

pytest_plugins = ["tests.fixtures.stack"]
