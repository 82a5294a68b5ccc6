"""Routes of this app below /api/v1/."""

from __future__ import annotations

from django.urls import path

from quota import api

urlpatterns = [
    path("login/", api.LoginView.as_view(), name="login"),
    path("tokens/", api.TokensView.as_view(), name="tokens"),
    path("tokens/<str:key>/", api.TokenView.as_view(), name="token"),
    path("tenants/", api.TenantsView.as_view(), name="tenants"),
    path("tenants/<str:tenant>/", api.TenantView.as_view(), name="tenant"),
    path("tenants/<str:tenant>/members/", api.MembersView.as_view(), name="members"),
    path("tenants/<str:tenant>/members/<str:username>/", api.MemberView.as_view(), name="member"),
    path("quota/", api.StandingView.as_view(), name="quota"),
    path("quota/bands/", api.BandsView.as_view(), name="bands"),
    path("quota/grants/", api.GrantsView.as_view(), name="grants"),
    path("quota/grants/<int:grant>/", api.GrantView.as_view(), name="grant"),
]
