"""Sentences that describe the audit records of a tenant to users. Each kind of record has one sentence.

A record of an unknown kind, for example from an older version, is shown as its kind and its values.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from quota.models import Record
from quota.vocabulary.money import format_credits as in_credits
from quota.vocabulary.resources import NAMES, format_number, format_quantities

# The fields of a record that hold micro-credits.
_MONEY = frozenset(
    {"amount", "price", "total", "monthly", "overdraft", "most_price", "refunded", "limit", "committed", "available"}
)
_MISSING = "–"

SENTENCES: Mapping[str, str | Promise] = {
    "tenant.created": gettext_lazy("The tenant was created."),
    "tenant.changed": gettext_lazy("The settings of the tenant were changed. The time zone is %(time_zone)s."),
    "tenant.moved": gettext_lazy("The tenant moved from organisation %(before)s to %(parent)s."),
    "team.created": gettext_lazy("The team %(team)s was created."),
    "team.joined": gettext_lazy("The team %(team)s joined this organisation."),
    "team.left": gettext_lazy("The team %(team)s left this organisation."),
    "member.set": gettext_lazy("%(user)s is a member with the role %(role)s."),
    "member.left": gettext_lazy("%(user)s, who had the role %(role)s, left the tenant."),
    "member.removed": gettext_lazy("%(user)s, who had the role %(role)s, was removed from the tenant."),
    "invitation.sent": gettext_lazy("%(email)s was invited with the role %(role)s."),
    "invitation.accepted": gettext_lazy("The invitation for %(email)s with the role %(role)s was accepted."),
    "invitation.withdrawn": gettext_lazy("Invitations were withdrawn. The reason: %(because)s."),
    "service-account.created": gettext_lazy("The service account %(user)s was created with the role %(role)s."),
    "service-account.changed": gettext_lazy("The service account %(user)s was changed. Its role is %(role)s."),
    "service-account.removed": gettext_lazy("The service account %(user)s and its tokens were removed."),
    "secret.set": gettext_lazy("The secret %(name)s was set. Its version is %(version)s."),
    "secret.granted": gettext_lazy("The secret %(name)s was granted to the jobs %(jobs)s."),
    "secret.revoked": gettext_lazy("The grant of the secret %(name)s to the jobs %(jobs)s was revoked."),
    "secret.deleted": gettext_lazy("The secret %(name)s was deleted."),
    "secret.env-erased": gettext_lazy("%(values)s values that looked like secrets were erased from old job files."),
    "config.written": gettext_lazy("Version %(version)s of the config file %(name)s was written."),
    "config.labelled": gettext_lazy("The labels of the config file %(name)s were changed."),
    "config.deleted": gettext_lazy("The config file %(name)s was deleted."),
    "secret.rekeyed": gettext_lazy("%(rows)s values of secrets were encrypted with the key %(key_id)s."),
    "token.issued": gettext_lazy("The token %(name)s was issued for %(user)s."),
    "token.restricted": gettext_lazy("The token %(key)s may only dispatch: %(templates)s."),
    "token.rotated": gettext_lazy("The token %(key)s was replaced by %(successor)s, and is valid until %(until)s."),
    "session.ended": gettext_lazy("A session of %(user)s was ended."),
    "second-factor.removed": gettext_lazy("The second factors of %(user)s were removed."),
    "account.unlinked": gettext_lazy("The account %(user)s was separated from the identity provider."),
    "sre.set": gettext_lazy("The identity provider set whether %(user)s is an SRE: %(sre)s."),
    "user-groups.set": gettext_lazy("The identity provider set the groups of %(user)s: %(groups)s."),
    "token.revoked": gettext_lazy("The token with the key %(key)s was revoked."),
    "capability.asked": gettext_lazy("The capability %(capability)s was requested for %(user)s: %(reason)s"),
    "capability.granted": gettext_lazy("The capability %(capability)s was granted to %(user)s: %(reason)s"),
    "capability.refused": gettext_lazy("The capability %(capability)s was rejected for %(user)s: %(answer)s"),
    "capability.revoked": gettext_lazy("The capability %(capability)s of %(user)s was revoked."),
    "history.erased": gettext_lazy(
        "A %(of)s was erased from the history: %(events)s events and %(rows)s archived rows."
    ),
    "budget.set": gettext_lazy("The monthly budget was set to %(monthly)s, with an overdraft of %(overdraft)s."),
    "budget.exhausted": gettext_lazy("The budget is spent: the tenant spent %(committed)s of %(limit)s."),
    "budget.resumed": gettext_lazy("The tenant has available budget again."),
    "budget.dropped": gettext_lazy("Jobs were demoted to the free priority, because the budget is spent."),
    "quota.granted": gettext_lazy("An SRE granted %(amounts)s in the band %(band)s of cell %(cell)s: %(reason)s"),
    "quota.ended": gettext_lazy("An SRE ended a quota grant in the band %(band)s of cell %(cell)s."),
    "quota.grace": gettext_lazy(
        "Quota in the band %(band)s of cell %(cell)s ended; its grace period ends at %(until)s."
    ),
    "quota.grace-over": gettext_lazy("The grace period in the band %(band)s of cell %(cell)s ended at %(over_at)s."),
    "quota.dropped": gettext_lazy("Jobs that exceed the quota in cell %(cell)s were demoted to the free priority."),
    "order.placed": gettext_lazy("Order %(order)s was placed."),
    "order.passed-on": gettext_lazy("Order %(order)s was forwarded to the SREs for a decision."),
    "order.approved": gettext_lazy(
        "%(by)s approved order %(order)s: %(amounts)s, %(band)s in cell %(cell)s for %(price)s."
    ),
    "order.rejected": gettext_lazy("%(by)s rejected order %(order)s: %(reason)s"),
    "order.active": gettext_lazy("Order %(order)s began: %(amounts)s, %(band)s in cell %(cell)s until %(ends_at)s."),
    "order.reminder": gettext_lazy("Order %(order)s ends on %(ends_at)s."),
    "order.renewed": gettext_lazy("Order %(order)s was renewed."),
    "order.renewal-failed": gettext_lazy("Order %(order)s could not be renewed: %(reason)s"),
    "order.renewal-set": gettext_lazy("The renewal of order %(order)s was turned %(renew)s."),
    "order.expired": gettext_lazy("Order %(order)s expired."),
    "order.cancelled": gettext_lazy("Order %(order)s was cancelled: %(reason)s"),
    "order.changed": gettext_lazy("Order %(order)s was changed."),
    "order.transferred": gettext_lazy("Order %(order)s, or a part of this order, was transferred to another tenant."),
    "order.timed-out": gettext_lazy("Order %(order)s was cancelled, because nobody decided about the order in time."),
    "quote.made": gettext_lazy("Quote %(quote)s was created: %(amounts)s, %(band)s in cell %(cell)s for %(price)s."),
    "invoice.closed": gettext_lazy("Invoice %(number)s of %(month)s was closed with a total of %(total)s."),
    "credit.corrected": gettext_lazy("Credit %(credit)s was corrected from %(before)s to %(amount)s: %(reason)s"),
    "channel.added": gettext_lazy("The notification channel %(target)s was added."),
    "channel.changed": gettext_lazy("The notification channel %(target)s was changed."),
    "channel.removed": gettext_lazy("The notification channel %(target)s was removed."),
    "channel.secret-rotated": gettext_lazy("The secret of the notification channel %(target)s was replaced."),
    "channel.tested": gettext_lazy("The notification channel %(target)s was tested."),
    "notices.channel-paused": gettext_lazy("A notification channel was paused, because it cannot be reached."),
    "site.created": gettext_lazy("Site %(site)s was created."),
    "site.changed": gettext_lazy("The description or the location of site %(site)s was changed."),
    "site.deleted": gettext_lazy("Site %(site)s was deleted."),
    "cluster.created": gettext_lazy("Cluster %(cluster)s was created at site %(site)s."),
    "cluster.changed": gettext_lazy("The description of cluster %(cluster)s was changed."),
    "cluster.moved": gettext_lazy("Cluster %(cluster)s moved from site %(before)s to site %(site)s."),
    "cluster.deleted": gettext_lazy("Cluster %(cluster)s was deleted."),
    "cell.moved": gettext_lazy("Cell %(cell)s moved from cluster %(before)s to cluster %(cluster)s."),
    "cell.deleted": gettext_lazy("Cell %(cell)s was deleted."),
    "package.uploaded": gettext_lazy("The package %(name)s was uploaded to cell %(cell)s."),
    "package.tagged": gettext_lazy("The tag %(tag)s of the package %(name)s in cell %(cell)s was set."),
    "package.untagged": gettext_lazy("The tag %(tag)s of the package %(name)s in cell %(cell)s was removed."),
    "package.deleted": gettext_lazy("The package %(name)s was deleted in cell %(cell)s."),
    "package.expired": gettext_lazy("An unused version of the package %(name)s was deleted in cell %(cell)s."),
    "authority.staged": gettext_lazy("A new certificate authority of the link shards was announced to the machines."),
    "authority.switched": gettext_lazy("The link shards use certificates of the new certificate authority."),
    "authority.retired": gettext_lazy("The old certificate authority of the link shards was removed."),
    "market.set": gettext_lazy("The rules of the market of cell %(cell)s were changed."),
    "prices.set": gettext_lazy("Version %(version)s of the price list of cell %(cell)s applies from %(valid_from)s."),
    "band.set": gettext_lazy("The band %(name)s has the priorities %(low)s to %(high)s."),
    "approval-rule.set": gettext_lazy("The approval rule %(rank)s was set. The approver is %(approver)s."),
    "approval-rule.removed": gettext_lazy("The approval rule %(rank)s was removed."),
    "shortfall.found": gettext_lazy("Cell %(cell)s has less capacity than the quota that was sold."),
    "shortfall.changed": gettext_lazy("The amount of quota that cell %(cell)s sold beyond its capacity changed."),
    "shortfall.over": gettext_lazy("Cell %(cell)s has enough capacity again for all sold quota."),
}


def sentence_of(record: Record) -> str:
    """Return an audit record as one sentence. Times are in the time zone that is active in Django."""
    values = defaultdict(lambda: _MISSING, {name: _text(name, value) for name, value in record.data.items()})
    if (known := SENTENCES.get(record.kind)) is not None:
        return str(known) % values
    if record.kind.startswith("money."):
        what = record.kind.removeprefix("money.").replace("-", " ")
        values["what"] = what.capitalize()
        return _("%(what)s of %(amount)s: %(text)s") % values
    words = record.kind.replace(".", " ").replace("-", " ").capitalize()
    details = ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in values.items() if text != _MISSING)
    return f"{words}: {details}" if details else f"{words}."


def _text(name: str, value: Any) -> str:
    if value in (None, "", [], {}):
        return _MISSING
    if isinstance(value, bool):
        return _("on") if value else _("off")
    if isinstance(value, int | float):
        return _("%s credits") % in_credits(int(value)) if name in _MONEY else format_number(value)
    if isinstance(value, list):
        return ", ".join(_text(name, one) for one in value)
    if isinstance(value, dict):
        parts = (_amount(key, amount) for key, amount in value.items() if amount)
        return ", ".join(parts) or _MISSING
    text = str(value)
    if name.endswith(("_at", "_from", "until")):
        try:
            return timezone.localtime(dt.datetime.fromisoformat(text)).strftime("%Y-%m-%d %H:%M %Z")
        except ValueError:
            return text
    return text[:300]


def _amount(resource: str, value: Any) -> str:
    if resource not in NAMES or not isinstance(value, int):
        return f"{resource.replace('_', ' ')} {_text(resource, value)}"
    return format_quantities({NAMES.index(resource): value})
