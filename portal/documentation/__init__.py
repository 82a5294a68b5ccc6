"""The documentation site at /docs/: the pages that the code generates, and the hooks that MkDocs calls."""
