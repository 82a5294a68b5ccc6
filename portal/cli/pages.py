"""`borgctl open`: opens a page of the portal in the browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from portal.cli import completions, output
from portal.cli.context import Commands, Context, split_index
from portal.cli.paths import part

app = Commands()


@app.command("open")
def open_page(
    session: Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB[/N]]",
            help="Name of the job or task. Default: the start page.",
            autocompletion=completions.jobs,
        ),
    ] = None,
    url: Annotated[bool, typer.Option("--url", help="Only print the address of the page.")] = False,
) -> None:
    """Open the page of a job or a task in the browser, or the start page of the portal."""
    path = "/"
    if name is not None:
        named, index = split_index(name)
        job = session.job(named)
        session.client.get(job.path)  # reports a name that does not exist, as other commands do
        path = f"/jobs/{part(job.cell)}/{part(job.tenant)}/{part(job.name)}/{'' if index is None else f'{index}/'}"
    address = session.profile.url.rstrip("/") + path
    if session.json:
        return output.as_json({"url": address})
    if not url and not webbrowser.open(address):
        output.remark("no browser was found; open the page yourself")
    return output.say(address)
