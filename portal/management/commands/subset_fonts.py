"""Create again the small copies of the fonts that pages use (`portal.fonts`). Run this command after an upgrade of the
library unfold, or when a page uses a new icon.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from portal import fonts


class Command(BaseCommand):
    help = "Write the subsets of unfold's fonts into portal/static. This command needs the optional dependencies `dev`."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        project = Path(fonts.__file__).parents[1]
        for path in (fonts.ICONS, *fonts.TEXT):
            content = fonts.cut_icons(project) if path == fonts.ICONS else fonts.cut_text(path)
            target = fonts.OWN / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            self.stdout.write(f"{path}: {len(content):,} bytes")
