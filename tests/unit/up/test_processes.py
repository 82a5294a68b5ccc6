"""What the table of processes promises to what lies elsewhere."""

from pathlib import Path

import pytest

from portal.up.home import Home
from portal.up.processes import LONGEST_NOTICE_S, stop_tasks
from quota.errors import Refused
from scheduling.jobfile import parse


@pytest.mark.parametrize(("more_s", "fits"), [(0.0, True), (1.0, False)])
def test_tasks_are_stopped_with_the_longest_notice_a_job_may_ask_for(more_s: float, fits: bool) -> None:
    notice_s = LONGEST_NOTICE_S + more_s
    document = {"name": "a", "task": {"command": ["true"], "notice_s": notice_s}}
    if fits:
        parse(document)
    else:
        with pytest.raises(Refused, match="notice_s"):
            parse(document)
    assert stop_tasks(Home(Path("/home")), {}).start_s > LONGEST_NOTICE_S
