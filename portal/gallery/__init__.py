"""A page for developers that shows every shared part of pages, in all its states, with the code that makes it.

The page exists only if the setting `DEBUG` is true.
"""
