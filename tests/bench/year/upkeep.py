"""What keeps an installation small, once per day of the simulated year: the periodic Celery tasks of production.

All of them run, so a task that is added to the schedule takes part. Two are done differently: the archiver and the
checkpoints run without child processes, which would have the real clock.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict

from celery import current_app
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractUser
from django.test import Client
from django.utils import timezone

from quota.models import Membership, Tenant
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import system
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.store import store
from scheduling.history.checkpoints import saving
from scheduling.journal.sql import execute, query
from scheduling.models import Cell

_OTHERWISE = {"scheduling.archive", "scheduling.checkpoints"}
SESSIONS_PER_DAY, TOKEN_DAYS = 10, 30
FIRST_TOKENS = 50  # so the page of tokens is full from the first day
# By the rule of autovacuum, with its settings.
_DUE_FOR_VACUUM = """
    SELECT relname FROM pg_stat_user_tables
    WHERE n_dead_tup > current_setting('autovacuum_vacuum_threshold')::int
        + current_setting('autovacuum_vacuum_scale_factor')::float * n_live_tup
    ORDER BY relname"""
_BACKEND = "django.contrib.auth.backends.ModelBackend"


def keep_house(cell: Cell, *, now: dt.datetime) -> dict[str, int]:
    """Do the upkeep of a day: a retention cycle. Return what the archiver did."""
    done = Archiver(store()).run(now=now)
    saving.checkpoint_write(cell.id)
    saving.checkpoints_drop_old(cell, now=now)
    from portal.celery import app

    app.loader.import_default_modules()
    for name in sorted({entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()} - _OTHERWISE):
        current_app.tasks[name]()
    _vacuum()
    return asdict(done)


def _vacuum() -> None:
    """Vacuum the tables that autovacuum would have vacuumed within minutes. Days of rows would be added meanwhile,
    because a day of the simulated year lasts some seconds.
    """
    for (table,) in query(_DUE_FOR_VACUUM):
        execute(f'VACUUM "{table}"')


def people() -> list[AbstractUser]:
    """Return an owner for each tenant, and an SRE at the end. They are created at the first call, with tokens."""
    model = get_user_model()
    found = list(model.objects.order_by("id"))
    if not found:
        for number, tenant in enumerate([*Tenant.objects.order_by("id"), None]):
            user = model.objects.create(username=f"user{number}", is_staff=tenant is None)
            user.set_unusable_password()
            user.save()
            Membership.objects.create(user=user, tenant=tenant or Tenant.objects.earliest("id"), role="owner")
            for _ in range(FIRST_TOKENS):
                token_of(user, now=timezone.now())
            found.append(user)
    return found


def sign_in(user: AbstractUser) -> str:
    """Return the id of a new session."""
    client = Client()
    client.force_login(user, backend=_BACKEND)
    return client.cookies["sessionid"].value


def token_of(user: AbstractUser, *, now: dt.datetime) -> str:
    """Return the secret of a new token."""
    scopes = ["read", "write", *(["admin"] if user.is_staff else [])]
    until = now + dt.timedelta(days=TOKEN_DAYS)
    return token_issue(principal=system("year"), user=user, name=f"{now:%F}", scopes=scopes, expires_at=until)[1]


def people_work(*, now: dt.datetime) -> None:
    """Let people sign in, and one of them create a token."""
    everybody = people()
    for number in range(SESSIONS_PER_DAY):
        sign_in(everybody[number % len(everybody)])
    token_of(everybody[now.timetuple().tm_yday % len(everybody)], now=now)
