"""Tests of the thread that submits the runs of cron jobs."""

from __future__ import annotations

import threading

import pytest
from django.db import InterfaceError, connection

from scheduling.cron import cron_thread, turn_thread

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("error", [InterfaceError("connection already closed"), KeyError("x")])
def test_the_thread_goes_on_after_errors_of_the_connection(cell, monkeypatch, error, caplog) -> None:
    """`is_working` runs in the thread, so it can break the connection of the thread."""
    looked = threading.Event()
    times = 0

    def is_working() -> bool:
        nonlocal times
        times += 1
        if times == 1:
            connection.close = broken
            raise error
        if times == 2:
            del connection.close
        looked.set()
        return False

    def broken() -> None:
        raise InterfaceError("connection already closed")

    for wait in ("_AWAY_S", "_FAILED_S"):
        monkeypatch.setattr(turn_thread, wait, 0.01)
    with cron_thread.cron_thread("cc", is_working=is_working):
        assert looked.wait(20)
    assert ("a database error delays runs" in caplog.text) == isinstance(error, InterfaceError)
