"""All URLs of the web process."""

from __future__ import annotations

from allauth.account.views import LogoutView
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from naming.api.urls import feeds
from portal.accounts import PasswordView, SignInView, forgotten_password
from portal.admin_site import site
from portal.gallery.pages import gallery
from portal.search.pages import find
from portal.sigma.frame.page import by_an_sre
from portal.sigma.team.invitations import JoinView

accounts = [
    path("login/", SignInView.as_view(), name="account_login"),
    path("logout/", LogoutView.as_view(template_name="sigma/logout.html"), name="account_logout"),
    path("password/change/", login_required(PasswordView.as_view()), name="account_change_password"),
    path("signup/", JoinView.as_view(), name="account_signup"),
    path("email/", by_an_sre, name="account_email"),
    path("password/set/", by_an_sre, name="account_set_password"),
    path("sessions/", RedirectView.as_view(pattern_name="sigma:sign-in"), name="usersessions_list"),
    path("password/reset/", forgotten_password, name="account_reset_password"),
    path("3rdparty/", by_an_sre, name="socialaccount_connections"),
    path("3rdparty/signup/", by_an_sre, name="socialaccount_signup"),
    path("", include("allauth.urls")),
]


def favicon(request: HttpRequest) -> HttpResponse:
    """Return a redirect to the icon. Browsers request /favicon.ico for documents without an icon, such as JSON."""
    return redirect(static("portal/icon.svg"))


urlpatterns = [
    path("favicon.ico", favicon),
    path("admin/", site.urls),
    path("accounts/", include(accounts)),
    path("api/v1/", include("portal.api.urls")),
    path("bns/", include("naming.api.urls")),
    path("", include(feeds)),
    path("", include("portal.http.health")),
    path("", include("portal.http.wellknown")),
    path("gallery/", gallery, name="gallery"),
    path("find/", find, name="find"),
    path("", include("portal.sigma.urls")),
]

handler404 = "portal.http.errors.nowhere"
handler500 = "portal.http.errors.broken"
