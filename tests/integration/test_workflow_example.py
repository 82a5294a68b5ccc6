"""The example of a map-reduce workflow through the real path: `borgctl`, the web process, a master and a Borglet."""

from __future__ import annotations

import collections
import contextlib
import os
import re
from pathlib import Path

import pytest

from portal.cli import jobfile
from quota.vocabulary.permissions import system
from scheduling.machines.joining import join_token_issue
from scheduling.models import Job, Machine, Workflow, WorkflowNode
from tests.integration import cli_world, master_processes, portal_server
from tests.integration.link_world import running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)
EXAMPLE = Path("examples/map-reduce.jsonnet")


def test_a_map_reduce_workflow_counts_the_words_of_a_file(cell, tenant, settings, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    test_settings = {"DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"]}
    with contextlib.ExitStack() as cleanup:
        url = cleanup.enter_context(portal_server.running(tmp_path / "portal.log", **test_settings))
        settings.PORTAL_URL = url
        link = cleanup.enter_context(running_link())
        cleanup.enter_context(master_processes.running(tmp_path, "cc", "cc.batch", BORG_PORTAL_URL=url))
        borglet = cleanup.enter_context(contextlib.closing(Borglet(tmp_path / "home", link)))
        borglet.start(join_token_issue(principal=system("test"), cell=cell))
        until(lambda: Machine.objects.filter(session__gt=0).exists(), what="connected")
        cli = cli_world.of(tmp_path, url, "ann", tenant=tenant)
        cli.file(EXAMPLE.read_text(), "count.jsonnet")
        assert "3 nodes with at most 66 jobs" in cli.out("plan", "count.jsonnet")
        assert "is new" in cli.out("submit", "count.jsonnet")
        assert "is live already" in cli.out("submit", "count.jsonnet")
        ended = Workflow.objects.filter(ended_at__isnull=False)
        until(ended.exists, seconds=120, what="the workflow ends")
        shown = cli.out("workflow", "show", "map-reduce")
    assert ended.get().state == "succeeded", shown
    assert "11 succeeded" in shown.splitlines()[0]
    text = Path(jobfile.read(str(EXAMPLE))["parameters"]["FILE"]).read_text().lower()
    expected = collections.Counter(re.findall("[a-z]+", text))
    result = WorkflowNode.objects.get(name="reduce").result
    assert (result["words"], result["different"]) == (sum(expected.values()), len(expected))
    assert result["most"] == {word: expected[word] for word in result["most"]}
    assert max(expected.values()) == max(result["most"].values())
    names = set(Job.objects.values_list("name", flat=True))
    assert names == {"map-reduce-split", "map-reduce-reduce", *(f"map-reduce-map-{n}" for n in range(8))}
    assert set(WorkflowNode.objects.values_list("attempt", flat=True)) == {0, 1}
