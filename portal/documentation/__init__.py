"""The documentation site at /docs/. This package generates pages from the code, and contains the hooks for MkDocs."""
