"""Replaces a person or a tenant by a pseudonym in rows of the history. Pure.

Values that are the identity are replaced in the columns and JSON fields that contain people or tenants. In reasons and
details, which people and the cell write for people, each word that is the identity is replaced. Other names stay: a job
may have the same name as a tenant.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class IdentityKind(StrEnum):
    """The kinds of identities that can be erased."""

    PERSON = "person"
    TENANT = "tenant"


# Columns and fields of JSON whose whole value is the name of a person or a tenant.
_NAMED = {
    IdentityKind.PERSON: frozenset({"actor", "submitted_by"}),
    IdentityKind.TENANT: frozenset({"user", "tenant", "payer", "tenants"}),
}
_FOR_PEOPLE = frozenset({"detail", "reason"})
# Fields that describe the person who caused an event: the address from which a shell was opened.
_ABOUT_THE_ACTOR = frozenset({"peer"})


@dataclass(frozen=True)
class Identity:
    """A person or a tenant by its name, and the pseudonym that replaces it."""

    kind: IdentityKind
    name: str
    pseudonym: str

    @cached_property
    def in_json(self) -> str:
        """Return the name as it appears inside a text of JSON."""
        return json.dumps(self.name, ensure_ascii=False)[1:-1]

    @cached_property
    def _word(self) -> re.Pattern[str]:
        return re.compile(rf"(?<![\w-]){re.escape(self.name)}(?![\w-])")

    @cached_property
    def _part(self) -> re.Pattern[str]:
        """Return the pattern of the tenant's name inside a longer name, such as task:CELL/TENANT/JOB/INDEX,
        TENANT/PACKAGE or ACCOUNT@TENANT.
        """
        return re.compile(rf"(?<![^/:]){re.escape(self.name)}(?=/)|(?<=@){re.escape(self.name)}$")

    def value(self, field: str, text: str) -> str:
        """Return `text`, the value of a column or of a JSON field, with the identity replaced by its pseudonym.
        `field`: the name of the column or field.
        """
        if field in _NAMED[self.kind] and text == self.name:
            return self.pseudonym
        if field in _FOR_PEOPLE:
            return self._word.sub(lambda _: self.pseudonym, text)
        return self._part.sub(lambda _: self.pseudonym, text) if self.kind is IdentityKind.TENANT else text

    def data(self, text: str, *, by: bool) -> str:
        """Return the JSON `text` with the identity replaced by its pseudonym. `by`: whether the identity is the actor
        of the event with this JSON.
        """
        before = json.loads(text)
        after = self._node("", before, by=by)
        return text if after == before else json.dumps(after, ensure_ascii=False, separators=(",", ":"))

    def _node(self, field: str, node: Any, *, by: bool) -> Any:
        if isinstance(node, dict):
            return {name: self._node(name, below, by=by) for name, below in node.items()}
        if isinstance(node, list):
            return [self._node(field, below, by=by) for below in node]
        if not isinstance(node, str):
            return node
        return "" if by and field in _ABOUT_THE_ACTOR else self.value(field, node)

    def erased(self, rows: pa.Table) -> tuple[pa.Table, int]:
        """Return the rows with the identity replaced by its pseudonym, in the same order and with the same schema, and
        how many differ.
        """
        touched = pa.repeat(False, rows.num_rows)
        own = self._own(rows)
        result = rows
        for place, field in enumerate(rows.schema):
            if not pa.types.is_string(field.type):
                continue
            column = rows[field.name].combine_chunks()
            places = pc.indices_nonzero(self._candidates(column, own)).to_pylist()
            before = column.take(pa.array(places, pa.int64())).to_pylist()
            after = [self._text(field.name, text, by=own[at].as_py()) for at, text in zip(places, before, strict=True)]
            changed = [n for n, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
            if changed:
                mask = _mask([places[n] for n in changed], rows.num_rows)
                column = pc.replace_with_mask(column, mask, pa.array([after[n] for n in changed], field.type))
                result = result.set_column(place, field, column)
                touched = pc.or_(touched, mask)
        return result, touched.true_count

    def _own(self, rows: pa.Table) -> pa.BooleanArray:
        """Return which rows are events that the identity caused."""
        if self.kind is IdentityKind.TENANT or "actor" not in rows.column_names:
            return pa.repeat(False, rows.num_rows)
        return pc.fill_null(pc.equal(rows["actor"], self.name), False).combine_chunks()

    def _candidates(self, column: pa.StringArray, own: pa.BooleanArray) -> pa.BooleanArray:
        found = pc.match_substring(column, self.name)
        if self.in_json != self.name:
            found = pc.or_(found, pc.match_substring(column, self.in_json))
        for field in _ABOUT_THE_ACTOR:
            found = pc.or_(found, pc.and_(own, pc.match_substring(column, f'"{field}"')))
        return pc.fill_null(found, False)

    def _text(self, field: str, text: str, *, by: bool) -> str:
        if text.startswith(("{", "[")):
            try:
                return self.data(text, by=by)
            except ValueError:
                pass  # it is not JSON
        return self.value(field, text)


def _mask(places: list[int], length: int) -> pa.BooleanArray:
    import numpy as np

    mask = np.zeros(length, np.bool_)
    mask[places] = True
    return pa.array(mask)
