"""Corrections of credits by SREs. A correction is a line and a posting of its own, with a reason. The corrected line
stays as it is.
"""

from __future__ import annotations

from django.db.models import Sum

from quota import clock, records
from quota.billing import ledger
from quota.billing.invoices import running_month
from quota.billing.spending import fitting
from quota.models import Credit
from quota.models.credits import CORRECTION
from quota.notifications import notices
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.money import format_credits
from quota.vocabulary.permissions import Action, Principal, require

_TEXT = 300


def credit_correct(*, principal: Principal, credit: Credit, to: int, reason: str) -> Credit | None:
    """Correct a line of credit, so that the line and its corrections add up to `to` micro-credits. Return the new line,
    or None if they add up to `to` already, so a repeated request changes nothing.

    Locks the accounts of the tenant. Raises `Rejected` if an argument is not valid; the error names the field.
    """
    require(principal, Action.PLATFORM_ADMIN)
    reason = reason.strip()
    if not reason:
        raise invalid("reason", "the reason is missing; say why the credit is corrected, the tenant reads it")
    if len(reason) > _TEXT:
        raise invalid("reason", f"the reason has {len(reason)} characters; give at most {_TEXT}")
    if credit.corrects_id is not None:
        raise invalid("credit", f"credit {credit.pk} is a correction; correct credit {credit.corrects_id} instead")
    if fitting("to", to) < 0:
        raise invalid("to", f"the amount {to} is negative; give 0 or more")
    tenant = credit.tenant
    with records.write(principal) as entry:
        ledger.accounts_locked(tenant)
        present = amount_now(credit)
        change = to - present
        if change == 0:
            return None
        if change > (left := ledger.revenue_from(tenant)):
            detail = (
                f"credit {credit.pk} is {format_credits(present)} credits now, and only {format_credits(left)} credits"
                f" of the charges of {tenant.name} are left; give at most {format_credits(present + max(0, left))}"
            )
            raise Rejected("credit-too-large", detail, fields={"to": detail}, figures={"left": left})
        text = f"correction of credit {credit.pk} of job {credit.job}: {reason}"
        posting = ledger.credit(entry, tenant, change, text=text)
        line = Credit.objects.create(
            tenant=tenant,
            cell=credit.cell,
            month=running_month(tenant),
            job_uid=credit.job_uid,
            job=credit.job,
            kind=CORRECTION,
            amount=change,
            posting=posting,
            corrects=credit,
            reason=reason,
            actor=principal.name,
            since=credit.since,
            until=credit.until,
            created_at=clock.now(),
        )
        entry.append("credit.corrected", tenant=tenant.name, credit=credit.pk, before=present, amount=to, reason=reason)
        notices.notify(
            entry,
            tenant,
            "credit.corrected",
            f"The credit for job {credit.job} in {credit.month:%Y-%m} was corrected",
            f"It was {format_credits(present)} credits, and is {format_credits(to)} credits now. Reason: {reason}",
            url=f"/billing/credits/{credit.pk}/",
            credit=credit.pk,
            amount=change,
        )
    return line


def amount_now(credit: Credit) -> int:
    """Return the sum of a line of credit and its corrections, in micro-credits. Makes one query."""
    corrections = Credit.objects.filter(corrects=credit)
    return credit.amount + int(corrections.aggregate(total=Sum("amount", default=0))["total"])
