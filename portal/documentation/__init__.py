"""The documentation site at /docs/: pages that are generated from the code, and the hooks that MkDocs calls."""
