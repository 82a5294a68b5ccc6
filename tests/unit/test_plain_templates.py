"""Tests of turning Django's translation tags into plain text without changing the pages."""

from __future__ import annotations

import pytest

from portal.plain_templates import without_translation


@pytest.mark.parametrize(
    ("template", "plain"),
    [
        ('{% translate "State" %}', "State"),
        ("<td data-label=\"{% translate 'State' %}\">", '<td data-label="State">'),
        ('{% trans "50%% of all" %}', "50% of all"),
        ("{% blocktranslate %}Notices, {{ news }} unread{% endblocktranslate %}", "Notices, {{ news }} unread"),
        (
            "{% blocktranslate with who=job.owner|lower n=1 %}{{ n }} by {{ who }}{% endblocktranslate %}",
            "{% with who=job.owner|lower n=1 %}{{ n }} by {{ who }}{% endwith %}",
        ),
    ],
)
def test_tags_become_their_texts(template: str, plain: str) -> None:
    assert without_translation(template) == plain


@pytest.mark.parametrize(
    "template",
    [
        '{% translate "disabled" as word %}',
        '{% translate "state"|upper %}',
        "{% translate text %}",
        '{% translate "May" context "month" %}',
        "{% blocktranslate count n=rows|length %}one row{% plural %}{{ n }} rows{% endblocktranslate %}",
        "{% blocktranslate with n=1 count m=rows %}one row{% plural %}{{ m }} rows{% endblocktranslate %}",
        "{% blocktranslate trimmed %} a {% endblocktranslate %}",
        "{% blocktranslate with n=1 asvar text %}{{ n }}{% endblocktranslate %}",
        "{% blocktranslate with n=1 context 'x' %}{{ n }}{% endblocktranslate %}",
    ],
)
def test_tags_with_other_options_stay(template: str) -> None:
    assert without_translation(template) == template


def test_a_block_ends_at_its_own_end() -> None:
    two = "{% blocktranslate %}a{% endblocktranslate %} {% if x %}{% blocktrans %}b{% endblocktrans %}{% endif %}"
    assert without_translation(two) == "a {% if x %}b{% endif %}"
