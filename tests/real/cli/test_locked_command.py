"""Tests of commands that run while `borgctl` holds a lock, and of the signals that stop them."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from portal.cli.locked_command import LockedCommand, Signalled, Signals


def test_the_lease_can_be_renewed_while_a_command_is_stopped() -> None:
    command = LockedCommand("trap '' TERM; sleep 0.5; exit 0", {})
    assert command.status(within_s=0.1) is None  # the trap is set
    calls: Counter[str] = Counter()
    assert command.stop(meanwhile=lambda: calls.update(["renew"]))
    assert calls["renew"] > 1


def test_signals_are_kept_until_they_can_be_raised() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Signalled) as raised, signals.raised():
            pytest.fail("the block begins although a signal came before")
    assert raised.value.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals, signals.raised():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
