from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest

class UnfoldAdminSite(AdminSite):
    def get_sidebar_list(self, request: HttpRequest) -> list[Any]: ...
