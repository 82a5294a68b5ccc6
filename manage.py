#!/usr/bin/env python3
"""Django's administrative commands."""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.production")
    execute_from_command_line(sys.argv)
