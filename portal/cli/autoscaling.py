"""Commands for the autoscaler: what it recommends for a job, its acceptance, and simulations."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import jobfile, output
from portal.cli.context import Commands, Context, DryRun, IfRevision, JobArgument
from portal.cli.jobs import show_change
from portal.cli.output import credits_of

autoscale = Commands(help="The autoscaler of a job: what it recommends, accept it, simulate it.")


@autoscale.command()
def show(session: Context, job: JobArgument) -> None:
    """Show the limits and the number of tasks that the autoscaler recommends for a job, what they would save, and its
    last changes.
    """
    answer = session.client.get(f"{session.job(job).path}autoscaling/")
    if session.json:
        return output.as_json(answer)
    output.say(f"{session.job(job)}: limits {answer['vertical']}, number of tasks {answer['horizontal']}")
    now, wanted = answer["now"], answer["wanted"]
    output.say(f"now:          {_values(now)}")
    if answer["available"]:
        output.say(f"recommended:  {_values(wanted)}, {_money(answer['saves_per_month'])}")
        for fit in answer["guidance"]:
            for line in fit["told"]:
                output.say(f"              {line}")
    else:
        output.say("recommended:  no change")
    if answer["needed"] is not None:
        output.say(f"load:         {answer['needed']:.1f} tasks are needed to bring the load of each to its target")
    for name, text in (
        ("usage_since", "measured:     since {}"),
        ("out_of_memory_at", "memory:       a task ran out of memory at {}"),
        ("needed_at", "load:         measured last at {}"),
        ("tasks_held_until", "held:         the number of tasks stays until {}, because another update has changed it"),
        ("limits_held_until", "held:         the limits stay until {}, because another update has changed them"),
    ):
        if answer[name] is not None:
            output.say(text.format(output.when(answer[name])))
    for one in answer["rejections"]:
        when = f"at {output.when(one['retry_at'])}" if one["retry_at"] is not None else "in the next turn"
        of = "number of tasks" if one["of"] == "tasks" else "limits"
        output.say(f"rejected:     {of}: {one['detail'].rstrip('.')}; the next attempt is {when}")
    for change in answer["changes"]:
        before = f"{_values(change['before'])} -> " if change["before"] else ""
        output.say(f"version {change['version']:<6} {output.when(change['at'])}  {before}{_values(change['after'])}")


@autoscale.command()
def accept(session: Context, job: JobArgument, if_revision: IfRevision = None, dry_run: DryRun = False) -> None:
    """Set the limits and the number of tasks that the autoscaler recommends for a job."""
    path = f"{session.job(job).path}autoscaling/accept/"
    show_change(session, session.client.post(path, if_revision=if_revision, dry_run=dry_run))


@autoscale.command()
def simulate(
    session: Context,
    job: JobArgument,
    file: Annotated[
        str | None,
        typer.Option("--file", help="Job file whose `autoscale` is simulated. Default: the settings of the job."),
    ] = None,
) -> None:
    """Show what the autoscaler would have done to a job on its recorded usage. Nothing changes."""
    rules = {} if file is None else {"autoscale": jobfile.read(file).get("autoscale")}
    answer = session.client.post(f"{session.job(job).path}autoscaling/simulate/", rules)
    if session.json:
        return output.as_json(answer)
    output.say(f"usage from {output.when(answer['begins_at'])} to {output.when(answer['ends_at'])}")
    if (vertical := answer["vertical"]) is not None:
        slack, after = vertical["slack"], vertical["slack_after"]
        output.say(f"limits:       {_limits(vertical['limits'])} -> {_limits(vertical['limits_at_end'])} at the end")
        output.say(
            f"unused:       CPU {slack['cpu']:.0%} -> {after['cpu']:.0%}, RAM {slack['ram']:.0%} -> {after['ram']:.0%}"
        )
        output.say(
            f"too low:      a task runs out of memory on {vertical['oom_task_days']} of {vertical['task_days']}"
            f" task-days, and uses more CPU than its limit in {vertical['throttled']:.2%} of the time"
        )
        output.say(f"changes:      {vertical['changes_total']}, {_money(vertical['saves_per_month'])}")
    if (horizontal := answer["horizontal"]) is not None:
        output.say(
            f"tasks:        {horizontal['tasks']:g} -> {horizontal['tasks_after']:g} on average, from"
            f" {horizontal['least']} to {horizontal['most']}"
        )
        output.say(f"too few:      {horizontal['beyond']:.2%} of the time")
        output.say(f"changes:      {horizontal['changes_total']}, {_money(horizontal['saves_per_month'])}")
        if horizontal["metric_left_out"]:
            output.remark("metrics of tasks are not recorded, so only CPU and the schedule were simulated")


def _values(values: dict[str, Any]) -> str:
    return f"{output.number(values['tasks'], 'task')} of {_limits(values)}"


def _limits(values: dict[str, Any]) -> str:
    return f"{output.quantity('cpu', values['cpu'])} CPU and {output.quantity('ram', values['ram'])} RAM"


def _money(saves: int) -> str:
    word = "saves" if saves >= 0 else "costs"
    return f"{word} {credits_of(abs(saves))} credits per 30 days at the list price"
