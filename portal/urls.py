"""Every door of the web process."""

from __future__ import annotations

from allauth.account.views import LoginView, LogoutView
from django.urls import include, path

from portal.admin_site import site

urlpatterns = [
    path("admin/", site.urls),
    path("accounts/login/", LoginView.as_view(template_name="sigma/login.html"), name="account_login"),
    path("accounts/logout/", LogoutView.as_view(template_name="sigma/logout.html"), name="account_logout"),
    path("accounts/", include("allauth.urls")),
    path("api/v1/", include("portal.api.urls")),
    path("bns/", include("naming.urls")),
    path("", include("portal.health")),
    path("", include("portal.sigma.urls")),
]
