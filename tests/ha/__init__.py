"""The multi-host test, `make ha-test`. README.md explains it."""
