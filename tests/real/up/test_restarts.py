from portal.up.supervision.restart_pauses import Restarts


def test_first_restart_is_quick_and_later_ones_wait_ever_longer() -> None:
    restarts = Restarts(first_s=0.2, longest_s=10.0)
    assert [restarts.ended(1.0) for _ in range(8)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_a_long_run_forgives_earlier_failures() -> None:
    restarts = Restarts(reset_after_s=30.0)
    for _ in range(6):
        restarts.ended(1.0)
    assert restarts.ended(30.0) == restarts.first_s
    assert restarts.total == 7


def test_a_process_that_fails_for_weeks_does_not_overflow() -> None:
    restarts = Restarts(failures=10**6)
    assert restarts.ended(0.0) == restarts.longest_s
