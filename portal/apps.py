from django.apps import AppConfig


class PortalConfig(AppConfig):
    """The Django app of the portal."""

    name = "portal"
    verbose_name = "Portal"
