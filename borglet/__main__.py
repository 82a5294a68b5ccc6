"""The commands `borglet run`, `stop-all` and `fleet`. Each option can also be set by an environment variable: for
example, BORGLET_HOME sets --home.

Exit codes: 0 success, 1 rejected or failed (with the reason on stderr), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from borglet import json_logging
from borglet.identity.credentials import BadAuthority
from borglet.identity.join import JoinFailed
from borglet.identity.saved_state import HomeInUse
from borglet.machine_specs import (
    BadMachine,
    MachineSpec,
    check_hostname,
    link_address,
    parse_bytes,
    parse_capacity,
    parse_pairs,
    read_fleet,
    uniform_fleet,
)
from borglet.usage_windows import WINDOW_S

if TYPE_CHECKING:
    from borglet.fleet import Fleet
    from borglet.runtimes.runtime_choice import RuntimeWishes

DEFAULT_FLEET_CAPACITY = "cpu=16,ram=64Gi,disk=1Ti"


def main(argv: Sequence[str] | None = None) -> None:
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        json_logging.configure(args.log_level)
        sys.exit(args.act(args))
    except BadMachine as error:
        parser.error(str(error))
    except (JoinFailed, HomeInUse, BadAuthority, OSError) as error:
        print(f"borglet: {error}", file=sys.stderr)
        sys.exit(1)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="borglet",
        description="Run the agent of one machine of a Borg cell.",
        epilog="The environment sets options that you leave out: BORGLET_HOME, BORGLET_LINK, BORGLET_JOIN_TOKEN, …",
    )
    verbs = parser.add_subparsers(required=True, metavar="run | stop-all | fleet")

    run = verbs.add_parser("run", help="run this machine's Borglet until SIGTERM; its tasks keep running afterwards")
    _add_common(run)
    _add_link(run)
    option = functools.partial(_option, run)
    hostname = os.uname().nodename.partition(".")[0].lower()
    option("--hostname", "name of this machine in its cell", default=hostname)
    option("--address", "address at which clients reach this machine's tasks", required=True)
    option(
        "--runtime",
        "run tasks in containers (oci) or as processes; auto uses containers if the machine supports them",
        default="auto",
        choices=["auto", "oci", "process"],
    )
    option("--capacity", "for example cpu=4,ram=16Gi,disk=100Gi; the Borglet measures the resources that you leave out")
    option("--rack", "name of the rack that holds this machine")
    option("--power-domain", "name of the power domain that feeds this machine")
    option("--platform", "kind of hardware, for constraints in job files and for the CPU factor that the cell gives it")
    option(
        "--task-user",
        "user (name or number) of all tasks whose job file names no user; default under root: one user per tenant",
    )
    option("--task-users", "users that job files may name, separated by commas; needs root")
    option("--package-bytes", "disk space for packages: the archives and their unpacked files", default="20Gi")
    option(
        "--peer-port",
        "port on which other machines download packages; 0: any free port, -1: no downloads",
        type=int,
        default=0,
    )
    option("--peer-uploads", "number of machines that may download packages from this one at once", type=int, default=4)
    option(
        "--task-uids",
        "range of user numbers for tasks: one number per task in containers, else one per tenant; needs root",
        default="200000-265535",
    )
    option(
        "--task-network",
        "network routed to this machine, for tasks with their own address, such as 10.20.30.0/24; default: none",
    )
    option("--devices", "device nodes of each accelerator, by number: 0=/dev/nvidia0+/dev/nvidiactl,1=…")
    option(
        "--log-bytes",
        "disk space for all logs; the Borglet deletes the oldest logs of ended tasks first",
        default="8Gi",
    )
    option("--log-days", "days for which the Borglet keeps logs after a task has ended", type=float, default=7.0)
    attribute = "attribute of this machine; repeat the option for more"
    run.add_argument("--attribute", action="append", default=[], metavar="K=V", help=attribute)
    run.set_defaults(act=_run)

    stop = verbs.add_parser("stop-all", help="stop every task of this machine; stop its Borglet first")
    _add_common(stop)
    _option(stop, "--wait-s", "seconds to wait for the Borglet to end", type=float, default=5.0)
    _option(stop, "--notice-s", "most seconds from SIGTERM to SIGKILL of a task", type=float, default=math.inf)
    stop.set_defaults(act=_stop_all)

    fleet = verbs.add_parser("fleet", help="run thousands of simulated machines in one process")
    _add_common(fleet)
    _add_link(fleet)
    machines = fleet.add_mutually_exclusive_group(required=True)
    machines.add_argument("--machines", type=int, metavar="N", help="number of equal machines")
    machines.add_argument("--file", type=Path, metavar="FILE.csv", help="file that lists the machines")
    option = functools.partial(_option, fleet)
    option("--capacity", "capacity of each machine that --machines creates", default=DEFAULT_FLEET_CAPACITY)
    option("--seed", "seed of the random usage and of the random pauses", type=int, default=0)
    option("--start-delay-s", "seconds that a task takes to start", type=float, default=0.05)
    option("--install-delay-s", "seconds that the installation of missing packages takes", type=float, default=0.05)
    option(
        "--window-s",
        "length in seconds of the usage windows that the machines report for history; 0: no windows",
        type=int,
        default=WINDOW_S,
    )
    fleet.set_defaults(act=_fleet)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--home", "directory in which this Borglet stores all its files", type=Path, required=True)
    levels = ["debug", "info", "warning", "error"]
    _option(parser, "--log-level", "least severe level to log", default="info", choices=levels)


def _add_link(parser: argparse.ArgumentParser) -> None:
    _option(parser, "--link", "https://host:port of the cell's link", required=True)
    _option(parser, "--join-token", "token for joining the cell; needed only for a home that has not joined yet")
    _option(parser, "--port-low", "first port given to tasks", type=int, default=20000)
    _option(parser, "--port-high", "last port given to tasks", type=int, default=29999)


def _option(
    parser: argparse.ArgumentParser,
    name: str,
    help: str,
    *,
    required: bool = False,
    default: object = "",
    type: type = str,
    choices: Sequence[str] | None = None,
) -> None:
    """Add an option that the environment variable BORGLET_<NAME> can also set. argparse checks the value of the option
    and of the variable.
    """
    given = os.environ.get("BORGLET_" + name.removeprefix("--").replace("-", "_").upper()) or None
    required, default = required and given is None, default if given is None else given
    parser.add_argument(name, help=help, required=required, default=default, type=type, choices=choices)


def _ports(args: argparse.Namespace) -> tuple[int, int]:
    if not 1 <= args.port_low <= args.port_high <= 65535:
        raise BadMachine(
            f"port-low, port-high: {args.port_low} to {args.port_high} is not a range of ports; give two numbers from"
            " 1 to 65535, the lower one first"
        )
    return args.port_low, args.port_high


def _run(args: argparse.Namespace) -> int:
    from borglet.service import MachineSettings, run_machine

    link_address(args.link)
    pairs = [pair for text in args.attribute for pair in parse_pairs("attribute", text, "\n")]
    pairs = pairs or parse_pairs("attribute", os.environ.get("BORGLET_ATTRIBUTES", ""), ",")
    run_machine(
        MachineSettings(
            home=args.home.absolute(),
            link=args.link,
            machine=MachineSpec(
                check_hostname(args.hostname),
                args.address,
                parse_capacity(args.capacity),
                args.platform,
                args.rack,
                args.power_domain,
                attributes=tuple(pairs),
            ),
            ports=_ports(args),
            join_token=args.join_token,
            package_bytes=parse_bytes("package-bytes", args.package_bytes) if args.package_bytes else None,
            peer_port=args.peer_port,
            peer_uploads=args.peer_uploads,
            wishes=_wishes(args),
        )
    )
    return 0


def _wishes(args: argparse.Namespace) -> RuntimeWishes:
    from borglet.runtimes.home.logfiles import LogRetention
    from borglet.runtimes.runtime_choice import RuntimeWishes, parse_devices, parse_uids

    first, count = parse_uids(args.task_uids)
    return RuntimeWishes(
        runtime=args.runtime,
        task_user=args.task_user,
        task_users=frozenset(filter(None, (name.strip() for name in args.task_users.split(",")))),
        first_uid=first,
        uids=count,
        devices=parse_devices(args.devices),
        network=args.task_network,
        logs=LogRetention(keep_s=86400.0 * args.log_days, budget_bytes=parse_bytes("log-bytes", args.log_bytes)),
    )


def _stop_all(args: argparse.Namespace) -> int:
    from borglet.service import stop_all

    count = stop_all(args.home.absolute(), wait_s=args.wait_s, notice_s=args.notice_s)
    print(f"{count} tasks stopped")
    return 0


def _fleet(args: argparse.Namespace) -> int:
    from borglet.fleet import Fleet, FleetSettings, join_fleet
    from borglet.identity.saved_state import DiskStore

    link_address(args.link)
    if args.file is not None:
        machines = read_fleet(args.file)
    elif args.machines > 0:
        machines = uniform_fleet(args.machines, parse_capacity(args.capacity))
    else:
        raise BadMachine(f"machines: {args.machines} is not a number of machines; give 1 or more")
    home = args.home.absolute()
    with DiskStore(home).lock():
        secrets = join_fleet(home, args.link, args.join_token, machines, ports=_ports(args))
        settings = FleetSettings(
            seed=args.seed,
            start_delay_s=args.start_delay_s,
            install_delay_s=args.install_delay_s,
            window_s=args.window_s,
        )
        fleet = Fleet(machines, secrets, args.link, home, settings=settings)
        asyncio.run(_until_signalled(fleet))
    return 0


async def _until_signalled(fleet: Fleet) -> None:
    work = asyncio.create_task(fleet.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


if __name__ == "__main__":
    main()
