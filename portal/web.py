"""`python -m portal.web`: a parent process and its web processes (*workers*). All workers share one port.

The parent imports the portal once and forks the workers, so they share the memory of the imported modules. The kernel
distributes connections among the workers (SO_REUSEPORT). If a worker ends, `serving.processes` starts a new one.
"""

from __future__ import annotations

import argparse
import gc
import os
import ssl
import sys
from functools import partial
from socket import SOCK_STREAM

import uvicorn

from portal.settings import environment as env
from serving.ports import NoPort, bound, check_free
from serving.processes import STOP_S, Parent, Worker

# More workers would need more connections than PostgreSQL allows by default.
MOST_PROCESSES = 4


def main() -> int:
    """Run the web processes until SIGTERM or SIGINT. Return the exit status."""
    env.check()
    parser = argparse.ArgumentParser(prog="portal.web", description="Serve the portal, its REST API and live pages.")
    parser.add_argument("--host", default=env.text("BORG_WEB_HOST"), help="address to listen on (BORG_WEB_HOST)")
    parser.add_argument("--port", type=int, default=env.number("BORG_WEB_PORT"), help="port (BORG_WEB_PORT)")
    parser.add_argument("--processes", type=int, default=0, help="number of workers; 0: one per core, at most 4")
    options = parser.parse_args()
    try:
        check_free(options.host, {"--port": options.port})
    except NoPort as error:
        print(f"portal.web: {error.strerror}", file=sys.stderr)
        return 1
    if wrong := _wrong_certificate():
        env.exit_with(wrong)
    from portal.asgi import application

    gc.collect()
    gc.freeze()
    processes = options.processes or min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    return Parent(processes, partial(_serve, application, options.host, options.port)).run()


def _wrong_certificate() -> str:
    """Return "" if the files in BORG_WEB_CERTIFICATE and BORG_WEB_KEY are usable, or if none is set. Otherwise return
    the problem.
    """
    certificate, key = env.text("BORG_WEB_CERTIFICATE"), env.text("BORG_WEB_KEY")
    if certificate:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key or None)
        except (OSError, ssl.SSLError) as error:
            return (
                f"BORG_WEB_CERTIFICATE={certificate!r} cannot be used: {error}. Give readable files of a certificate"
                " and of its key, in PEM format."
            )
    return ""


def _serve(application: object, host: str, port: int, worker: Worker) -> int:
    config = uvicorn.Config(
        application,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        # This time is longer than clients keep idle connections. Otherwise the server could close a connection while a
        # client sends a request on it.
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(STOP_S) - 1,
        ssl_certfile=env.text("BORG_WEB_CERTIFICATE") or None,
        ssl_keyfile=env.text("BORG_WEB_KEY") or None,
    )
    server = uvicorn.Server(config)
    with bound(host, port, SOCK_STREAM) as listener:
        server.run(sockets=[listener])
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
