"""A page for developers that shows all shared parts of pages (such as tables and filters) in all their states, with the
code that makes them.

The page exists only if the setting `DEBUG` is true.
"""
