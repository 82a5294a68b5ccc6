"""`borglet run | stop-all | fleet`. Every option can come from the environment: --join-token as BORGLET_JOIN_TOKEN.

Exit codes: 0 done, 1 refused or failed with the reason on stderr, 2 bad usage.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from borglet import loglines
from borglet.identity.credentials import BadAuthority
from borglet.identity.join import JoinFailed
from borglet.identity.store import HomeInUse
from borglet.link.client import BadAddress, link_url
from borglet.machines import (
    BadMachine,
    check_hostname,
    parse_bytes,
    parse_capacity,
    parse_pairs,
    read_fleet,
    uniform_fleet,
)
from borglet.windows import WINDOW_S

if TYPE_CHECKING:
    from borglet.fleet import Fleet
    from borglet.runtimes.choice import RuntimeWishes

DEFAULT_FLEET_CAPACITY = "cpu=16,ram=64Gi,disk=1Ti"


def main(argv: Sequence[str] | None = None) -> None:
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        loglines.configure(args.log_level)
        sys.exit(args.act(args))
    except (BadMachine, BadAddress) as error:
        parser.error(str(error))
    except (JoinFailed, HomeInUse, BadAuthority, OSError) as error:
        print(f"borglet: {error}", file=sys.stderr)
        sys.exit(1)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="borglet",
        description="The agent of one machine of a Borg cell.",
        epilog="Options not given are read from the environment: BORGLET_HOME, BORGLET_LINK, BORGLET_JOIN_TOKEN, …",
    )
    verbs = parser.add_subparsers(required=True, metavar="run | stop-all | fleet")

    run = verbs.add_parser("run", help="serve as this machine's Borglet until SIGTERM; tasks outlive it")
    _add_common(run)
    _add_link(run)
    _option(
        run,
        "--hostname",
        help="name of this machine in its cell",
        default=os.uname().nodename.partition(".")[0].lower(),
    )
    _option(run, "--address", required=True, help="where clients reach this machine's tasks")
    _option(
        run,
        "--runtime",
        default="auto",
        choices=["auto", "oci", "process"],
        help="what runs the tasks: containers, processes, or (auto) containers where they can be had",
    )
    _option(run, "--capacity", default="", help="cpu=4,ram=16Gi,disk=100Gi; what is not given is measured")
    _option(run, "--rack", default="")
    _option(run, "--power-domain", default="")
    _option(
        run,
        "--platform",
        default="",
        help="kind of hardware, for constraints of job files; changes no figures",
    )
    _option(
        run,
        "--task-user",
        default="",
        help="one user, name or number, for all tasks that name none; by default, under root, one user per tenant",
    )
    _option(run, "--task-users", default="", help="users that job files may name, by comma; needs root")
    _option(
        run, "--package-bytes", default="20Gi", help="disk for packages: archives and what they unpack to"
    )
    _option(
        run, "--peer-port", type=int, default=0, help="gives packages to other machines; 0: any, -1: none"
    )
    _option(
        run, "--peer-uploads", type=int, default=4, help="how many machines get packages from here at once"
    )
    _option(
        run,
        "--task-uids",
        default="200000-265535",
        help="numbers of the users that tasks run as: one per task in containers, else one per tenant; needs root",
    )
    _option(
        run,
        "--task-network",
        default="",
        help="10.20.30.0/24: addresses for tasks that ask for their own, routed to this machine; empty: none",
    )
    _option(
        run, "--devices", default="", help="device nodes of accelerators: 0=/dev/nvidia0+/dev/nvidiactl,1=…"
    )
    _option(
        run, "--log-bytes", default="8Gi", help="disk for all logs; of tasks that left, the oldest go first"
    )
    _option(run, "--log-days", type=float, default=7.0, help="how long logs are kept after a task has left")
    run.add_argument("--attribute", action="append", default=[], metavar="K=V", help="may be repeated")
    run.set_defaults(act=_run)

    stop = verbs.add_parser("stop-all", help="stop every task of this machine; its Borglet must have ended")
    _add_common(stop)
    _option(stop, "--wait-s", type=float, default=5.0, help="how long to wait for the Borglet to end")
    _option(stop, "--notice-s", type=float, default=math.inf, help="no task gets more notice than this")
    stop.set_defaults(act=_stop_all)

    fleet = verbs.add_parser("fleet", help="thousands of simulated machines in one process")
    _add_common(fleet)
    _add_link(fleet)
    machines = fleet.add_mutually_exclusive_group(required=True)
    machines.add_argument("--machines", type=int, metavar="N", help="so many equal machines")
    machines.add_argument("--file", type=Path, metavar="FILE.csv", help="machines as the file lists them")
    _option(fleet, "--capacity", default=DEFAULT_FLEET_CAPACITY, help="of each of --machines")
    _option(fleet, "--seed", type=int, default=0, help="of usage and of pauses")
    _option(fleet, "--start-delay-s", type=float, default=0.05, help="how long a task takes to start")
    _option(fleet, "--install-delay-s", type=float, default=0.05, help="how long missing packages take")
    _option(
        fleet,
        "--window-s",
        type=int,
        default=WINDOW_S,
        help="length in seconds of the usage windows that are reported for history; 0 reports none",
    )
    fleet.set_defaults(act=_fleet)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--home", type=Path, required=True, help="directory of all this Borglet keeps")
    _option(parser, "--log-level", default="info", choices=["debug", "info", "warning", "error"])


def _add_link(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--link", required=True, help="https://host:port of the cell's link")
    _option(parser, "--join-token", default="", help="needed once, by a home that has not joined")
    _option(parser, "--port-low", type=int, default=20000, help="first port given to tasks")
    _option(parser, "--port-high", type=int, default=29999, help="last port given to tasks")


def _option(
    parser: argparse.ArgumentParser,
    name: str,
    *,
    help: str = "",
    required: bool = False,
    default: object = None,
    type: type = str,
    choices: Sequence[str] | None = None,
) -> None:
    """An option that may come from BORGLET_<NAME>; argparse checks a text from there like one from the line."""
    given = os.environ.get("BORGLET_" + name.removeprefix("--").replace("-", "_").upper()) or None
    parser.add_argument(
        name,
        help=help,
        required=required and given is None,
        default=given if given is not None else default,
        type=type,
        choices=choices,
    )


def _ports(args: argparse.Namespace) -> tuple[int, int]:
    if not 1 <= args.port_low <= args.port_high <= 65535:
        raise BadMachine(
            f"port-low, port-high: {args.port_low} to {args.port_high} is no range inside 1 to 65535"
        )
    return args.port_low, args.port_high


def _run(args: argparse.Namespace) -> int:
    from borglet.service import MachineSettings, run_machine

    link_url(args.link)
    low, high = _ports(args)
    pairs = [pair for text in args.attribute for pair in parse_pairs("attribute", text, "\n")]
    pairs = pairs or parse_pairs("attribute", os.environ.get("BORGLET_ATTRIBUTES", ""), ",")
    run_machine(
        MachineSettings(
            home=args.home.absolute(),
            link=args.link,
            hostname=check_hostname(args.hostname),
            address=args.address,
            join_token=args.join_token,
            capacity=tuple(parse_capacity(args.capacity).items()),
            attributes=tuple(pairs),
            platform=args.platform,
            rack=args.rack,
            power_domain=args.power_domain,
            port_low=low,
            port_high=high,
            package_bytes=parse_bytes("package-bytes", args.package_bytes) if args.package_bytes else None,
            peer_port=args.peer_port,
            peer_uploads=args.peer_uploads,
            wishes=_wishes(args),
        )
    )
    return 0


def _wishes(args: argparse.Namespace) -> RuntimeWishes:
    from borglet.runtimes.choice import RuntimeWishes, parse_devices, parse_uids
    from borglet.runtimes.home.logfiles import LogRetention

    first, count = parse_uids(args.task_uids)
    return RuntimeWishes(
        runtime=args.runtime,
        task_user=args.task_user,
        task_users=frozenset(filter(None, (name.strip() for name in args.task_users.split(",")))),
        first_uid=first,
        uids=count,
        devices=parse_devices(args.devices),
        network=args.task_network,
        logs=LogRetention(
            keep_s=86400.0 * args.log_days, budget_bytes=parse_bytes("log-bytes", args.log_bytes)
        ),
    )


def _stop_all(args: argparse.Namespace) -> int:
    from borglet.service import stop_all

    count = stop_all(args.home.absolute(), wait_s=args.wait_s, notice_s=args.notice_s)
    print(f"{count} tasks stopped")
    return 0


def _fleet(args: argparse.Namespace) -> int:
    from borglet.fleet import Fleet, FleetSettings, join_fleet
    from borglet.identity.store import DiskStore

    link_url(args.link)
    if args.file is not None:
        machines = read_fleet(args.file)
    elif args.machines > 0:
        machines = uniform_fleet(args.machines, parse_capacity(args.capacity))
    else:
        raise BadMachine(f"machines: {args.machines} is no number of machines; wanted 1 or more")
    home = args.home.absolute()
    with DiskStore(home).lock():
        secrets = join_fleet(home, args.link, args.join_token, machines, ports=_ports(args))
        settings = FleetSettings(
            seed=args.seed,
            start_delay_s=args.start_delay_s,
            install_delay_s=args.install_delay_s,
            window_s=args.window_s,
        )
        fleet = Fleet(machines, secrets, args.link, settings=settings, home=home)
        asyncio.run(_until_signalled(fleet))
    return 0


async def _until_signalled(fleet: Fleet) -> None:
    loop = asyncio.get_running_loop()
    work = loop.create_task(fleet.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        return


if __name__ == "__main__":
    main()
