"""A template loader that replaces tags for translation by their texts, because all texts of the portal are English.

    {% translate "State" %}                                                    State
    {% blocktranslate with who=job.owner %}by {{ who }}{% endblocktranslate %} {% with who=job.owner %}by {{ who }}…

The setting `USE_I18N` is off, but the tags would still cost time on every page. The loader replaces them once, when it
loads a template. The pages look the same. Tags with other options stay in the template.
"""

from __future__ import annotations

import re

from django.conf import settings
from django.template import Origin
from django.template.loaders.app_directories import Loader

_TEXT = re.compile(r"""\{% *(?:translate|trans) +(?:"([^"\\]*)"|'([^'\\]*)') *%\}""")
_BLOCK = re.compile(
    r"\{% *(?P<tag>blocktranslate|blocktrans)(?: +with +(?P<values>[^%]*?))? *%\}"
    r"(?P<text>(?:(?!\{%).)*?)\{% *end(?P=tag) *%\}",
    re.DOTALL,
)
_OPTION = re.compile(r"(?:^| )(?:count|trimmed|asvar|context) ?", re.DOTALL)


class PlainLoader(Loader):
    """A loader of the templates of all apps. It replaces translation tags by their English texts when it loads a
    template.
    """

    def get_contents(self, origin: Origin) -> str:
        contents = str(super().get_contents(origin))
        return contents if settings.USE_I18N else without_translation(contents)


def without_translation(template: str) -> str:
    """Return the source of a template, with each translation tag replaced by its text."""
    return _BLOCK.sub(_block, _TEXT.sub(_text, template))


def _text(tag: re.Match[str]) -> str:
    text = tag[1] if tag[1] is not None else tag[2]
    return text.replace("%%", "%")


def _block(block: re.Match[str]) -> str:
    values = block["values"]
    if values is None:
        return block["text"]
    if _OPTION.search(values):
        return block[0]
    return f"{{% with {values} %}}{block['text']}{{% endwith %}}"
