"""The parts that pages share, as values for templates: tables, filters, timelines, the choice of a past moment, and the
explanation of an empty page. Pure.

Each value has a template of the same name in `templates/parts/`. A page that includes the template needs the style
sheet `parts.css`. `/gallery/` shows all of them.
"""
