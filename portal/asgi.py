"""The ASGI application of a web process. Django answers HTTP requests, and Channels serves the WebSockets below /live/
and /ws/. `python -m portal.web` starts the web processes.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.production")

import django

django.setup()  # first, because the next imports need the loaded apps

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.db import database_sync_to_async  # noqa: E402
from channels.routing import URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import connections  # noqa: E402
from django.urls import get_resolver  # noqa: E402

from portal.http.asgi_responses import Receive, Send  # noqa: E402
from portal.http.handler import ThreadedHandler  # noqa: E402
from portal.http.package_uploads import PackageUploads  # noqa: E402
from portal.http.rate_limits import RequestRates  # noqa: E402
from portal.http.request_deadlines import Front  # noqa: E402
from portal.live import routing  # noqa: E402
from portal.live.hub import hub  # noqa: E402
from portal.live.lock_polls import LockPolls  # noqa: E402
from portal.live.long_polls import NamePolls  # noqa: E402
from portal.live.origins import SameOrigin  # noqa: E402
from portal.live.watched_names import names_hub  # noqa: E402
from portal.settings.base import database  # noqa: E402
from portal.settings.environment import exit_with, text  # noqa: E402
from serving.shared_buckets import SharedBuckets  # noqa: E402

if settings.STATIC_ROOT and not (Path(settings.STATIC_ROOT) / "staticfiles.json").is_file():
    exit_with(f"Cannot start the web process: {settings.STATIC_ROOT} contains no static files. Run `make install`.")

# The number of connections that the requests, live pages and shells of one process share.
POOL = 20
# Python's garbage collector traverses all long-lived objects each time, so it runs less often here. With 10,000
# connections, the 99th percentile of the time of an answer fell from almost a second to 46 ms (DESIGN §3).
GC_THRESHOLDS = (50_000, 20, 50)


def use_pool(size: int) -> None:
    """Make all requests of this process share a pool of `size` connections to the database.

    Call this function before the first query of the process.
    """
    url, deadline_s = text("BORG_DATABASE_URL"), settings.BORG_REQUEST_DEADLINE_S
    connections.settings["default"].update(database(url, pool=size, deadline_s=deadline_s))


async def lifespan(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Do the work at the start and at the end of a web process. At the start, create the pool of database connections,
    load the URLs and tune garbage collection. At the end, stop the threads that send changes to live pages and to
    watchers of names.
    """
    await receive()
    if not os.environ.get("BORG_DATABASE_POOL"):
        use_pool(POOL)
    assert get_resolver().url_patterns
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await rates.close()
    await lock_polls.stop()
    await database_sync_to_async(hub.stop)()
    await database_sync_to_async(names_hub.stop)()
    await send({"type": "lifespan.shutdown.complete"})


http = ThreadedHandler(deadline_s=settings.BORG_REQUEST_DEADLINE_S, most_bytes=settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
rates = RequestRates(
    SharedBuckets(settings.BORG_REDIS_URL),
    token=settings.BORG_RATE_PER_TOKEN,
    tenant=settings.BORG_RATE_PER_TENANT,
    address=settings.BORG_RATE_PER_ADDRESS,
)
lock_polls = LockPolls(PackageUploads(http))
application = Front(
    http=NamePolls(lock_polls),
    websocket=SameOrigin(AuthMiddlewareStack(URLRouter(routing.urlpatterns))),
    lifespan=lifespan,
    deadline_s=settings.BORG_REQUEST_DEADLINE_S,
    rates=rates,
)
