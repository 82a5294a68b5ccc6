"""Facts of who may ask for what. Rules live in `quota.services`."""

from quota.models.access import Token
from quota.models.bands import PriorityBand
from quota.models.quota import CellCapacity, Quota, QuotaUse
from quota.models.record import Record, Stream
from quota.models.tenants import Capability, Membership, Tenant

__all__ = [
    "Capability",
    "CellCapacity",
    "Membership",
    "PriorityBand",
    "Quota",
    "QuotaUse",
    "Record",
    "Stream",
    "Tenant",
    "Token",
]
