"""Celery tasks of quota. Each task calls one function. Repeated or parallel calls of these functions do no harm."""

from __future__ import annotations

import structlog
from celery import shared_task

from quota import retention
from quota.billing import budgets, invoices, metering
from quota.market import order_sweep, shortfalls
from quota.notifications import delivery_attempts

log = structlog.get_logger(__name__)


@shared_task(name="quota.notices_send", ignore_result=True)
def notices_send() -> None:
    done = delivery_attempts.notices_send()
    if done.sent or done.failed:
        log.info("notices sent", sent=done.sent, failed=done.failed)


@shared_task(name="quota.budgets_watch", ignore_result=True)
def budgets_watch() -> None:
    if detail := budgets.budgets_watch():
        log.info("budgets changed", budgets=detail)


@shared_task(name="quota.usage_charge", ignore_result=True)
def usage_charge() -> None:
    if made := metering.usage_charge():
        log.info("usage charged", postings=len(made))


@shared_task(name="quota.invoices_close_due", ignore_result=True)
def invoices_close_due() -> None:
    if closed := invoices.invoices_close_due():
        log.info("invoices closed", invoices=[invoice.number for invoice in closed])


@shared_task(name="quota.orders_advance", ignore_result=True)
def orders_advance() -> None:
    if done := order_sweep.orders_advance():
        log.info("the worker processed the orders that were due to start, renew, end or time out", orders=done)
    if cells := shortfalls.shortfalls_examine_lowered():
        log.info(
            "the worker checked whether cells with decreased capacity have sold more quota than they have", cells=cells
        )


@shared_task(name="quota.shortfalls_examine", ignore_result=True)
def shortfalls_examine() -> None:
    if there := shortfalls.shortfalls_examine_all():
        log.warning("cells have sold more quota than they have", shortfalls=there)


@shared_task(name="quota.forget_old", ignore_result=True)
def forget_old() -> None:
    if gone := retention.forget_old():
        log.info(
            "the worker deleted rows that are older than their retention time",
            **{name.replace(" ", "_"): rows for name, rows in gone.items()},
        )
