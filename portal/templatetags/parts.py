"""Template tags of the parts that pages share: links that change parameters of the URL, and links to other pages of a
list.
"""

from __future__ import annotations

from django import template
from django.http import QueryDict
from django.template.context import Context

from portal.parts.paging import Changes
from portal.sigma.frame.page import paging_of

register = template.Library()
register.filter("paging", paging_of)


@register.simple_tag(takes_context=True)
def link_with(context: Context, changes: Changes) -> str:
    """Return a link to this page whose URL has other parameters. `changes`: the new value of each parameter, or None to
    remove it.
    """
    request = context.get("request")
    given = request.GET.copy() if request is not None else QueryDict(mutable=True)
    for name, value in changes.items():
        if value is None:
            given.pop(name, None)
        else:
            given[name] = str(value)
    return f"?{given.urlencode()}" if given else "?"
