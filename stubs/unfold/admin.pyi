from typing import Any

from django.contrib import admin

class ModelAdmin(admin.ModelAdmin[Any]):
    compressed_fields: bool
    list_filter_submit: bool
    list_fullwidth: bool
    list_disable_select_all: bool
    warn_unsaved_form: bool
    actions_list: Any
    actions_detail: Any
