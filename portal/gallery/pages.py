"""The gallery, which shows all shared parts of pages (such as tables and filters), as two pages: one has the header and
menu of Sigma (the pages for tenants), the other those of the SRE console. Without `DEBUG`, both return 404.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from portal.gallery.examples import EXAMPLES
from portal.sigma.frame.page import page
from quota.vocabulary.permissions import Principal


@dataclass(frozen=True, slots=True)
class GalleryItem:
    """An example in the gallery: a shared part of pages in one state. `value`: the value that the part's template
    shows. `source`: the Python code that makes this value.
    """

    title: str
    value: object
    source: str


@dataclass(frozen=True, slots=True)
class GallerySection:
    """A section of the gallery with all examples of one shared part of pages. `template`: the template of the part.
    `name`: the template variable that holds the value of an example.
    """

    title: str
    template: str
    name: str
    items: tuple[GalleryItem, ...]

    @property
    def code(self) -> str:
        """Return the template code with which a page includes this part."""
        return f'{{% include "{self.template}" with {self.name}=… %}}'


def gallery(request: HttpRequest) -> HttpResponse:
    """Return the gallery with the header and menu of Sigma, the pages for tenants."""
    if not settings.DEBUG:
        raise Http404
    return _sigma_page(request)


def console_gallery(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the gallery with the header and menu of the SRE console. `site`: the admin site."""
    if not settings.DEBUG:
        raise Http404
    context = {**site.each_context(request), "title": _("Gallery of page components"), "sections": _sections(request)}
    return TemplateResponse(request, "gallery/console.html", context)


@page
def _sigma_page(request: HttpRequest, principal: Principal) -> HttpResponse:
    return render(request, "gallery/sigma.html", {"sections": _sections(request)})


def _sections(request: HttpRequest) -> list[GallerySection]:
    given = request.GET.dict()
    return [
        GallerySection(
            title,
            template,
            name,
            tuple(
                GalleryItem(one.__name__.replace("_", " ").capitalize(), one(given), inspect.getsource(one))
                for one in examples
            ),
        )
        for title, template, name, examples in EXAMPLES
    ]
