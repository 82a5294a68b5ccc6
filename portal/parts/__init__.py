"""The parts that pages share: tables, filters, timelines, moments and empty states, as values for templates. Pure.

Each value has a template of the same name in `templates/parts/`. A page that includes the template needs the style
sheet `parts.css`. `/gallery/` shows all of them.
"""
