"""Tables of tenants, quota, money and notifications. The code that changes their rows is in the other folders of
`quota`.
"""

from quota.models.credits import Credit, PromiseBreach
from quota.models.ledger import Account, AccountKind, Budget, Invoice, LedgerEntry, MeteredHour, Posting
from quota.models.market import ApprovalRule, Market, Shortfall
from quota.models.notices import Notice, NoticeChannel, NoticeDelivery, NoticeRead
from quota.models.orders import HOLDING, OPEN, Order, OrderState
from quota.models.preferences import Preferences
from quota.models.prices import PriceList, Quote
from quota.models.quota import CellCapacity, PriorityBand, Quota, QuotaExpiry, QuotaUse
from quota.models.record import Record, Stream
from quota.models.tenants import Capability, CapabilityRequest, Invitation, Membership, ServiceAccount, Tenant, Token

__all__ = [
    "HOLDING",
    "OPEN",
    "Account",
    "AccountKind",
    "ApprovalRule",
    "Budget",
    "Capability",
    "CapabilityRequest",
    "CellCapacity",
    "Credit",
    "Invitation",
    "Invoice",
    "LedgerEntry",
    "Market",
    "Membership",
    "MeteredHour",
    "Notice",
    "NoticeChannel",
    "NoticeDelivery",
    "NoticeRead",
    "Order",
    "OrderState",
    "Posting",
    "Preferences",
    "PriceList",
    "PriorityBand",
    "PromiseBreach",
    "Quota",
    "QuotaExpiry",
    "QuotaUse",
    "Quote",
    "Record",
    "ServiceAccount",
    "Shortfall",
    "Stream",
    "Tenant",
    "Token",
]
