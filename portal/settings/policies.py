"""What browsers may do with the pages: Content-Security-Policy of Sigma and of the console, and related headers.

Django 6.0 has `SECURE_CSP`; Django 5.2 has not, so django-csp writes the header.
"""

from __future__ import annotations

from typing import Any

from csp.constants import NONCE, NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE

# Sigma, the pages of accounts, error pages and everything else that is not the console: no unsafe source.
SIGMA: dict[str, Any] = {
    "default-src": [NONE],
    "script-src": [SELF],
    # The nonce is sent only by pages that ask for it: xterm.js adds <style> elements to the page of a shell.
    "style-src": [SELF, NONCE],
    "img-src": [SELF, "data:"],  # unfold's styles draw arrows, allauth draws the QR code of a second factor
    "font-src": [SELF],
    "connect-src": [SELF],  # WebSockets of the same host and port included
    "form-action": [SELF],
    "frame-ancestors": [NONE],
    "base-uri": [NONE],
    "object-src": [NONE],
    # Only `safe.js` may turn text into elements.
    "require-trusted-types-for": ["'script'"],
    "trusted-types": ["borg", "default"],
}
# What the console has instead. The README of `portal` gives the reason for each exception.
CONSOLE: dict[str, Any] = {
    "script-src": [SELF, NONCE, UNSAFE_EVAL],
    "style-src-attr": [UNSAFE_INLINE],
    "require-trusted-types-for": None,
    "trusted-types": None,
}
# Features of browsers that no page uses. Copying to the clipboard is the one that is used.
PERMISSIONS = (
    "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), microphone=(), "
    "midi=(), payment=(), usb=(), clipboard-write=(self)"
)
