"""Headers that limit what browsers may do with pages: the Content-Security-Policy of Sigma and of the console.

*Sigma* is the name of all pages except those of the console. The library django-csp sends the header.
"""

from __future__ import annotations

from typing import Any

from csp.constants import NONCE, NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE

# The policy of all pages except the console: Sigma, account pages, error pages. It allows no unsafe source.
SIGMA: dict[str, Any] = {
    "default-src": [NONE],
    "script-src": [SELF],
    # Only pages that need the nonce send it: xterm.js adds <style> elements to the page of a shell.
    "style-src": [SELF, NONCE],
    "img-src": [SELF, "data:"],  # for arrows in unfold's styles, and allauth's QR code of a second factor
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
# The directives that the console overrides. The README of `portal` gives the reason for each exception.
CONSOLE: dict[str, Any] = {
    "script-src": [SELF, NONCE, UNSAFE_EVAL],
    "style-src-attr": [UNSAFE_INLINE],
    "require-trusted-types-for": None,
    "trusted-types": None,
}
# The directives that the documentation at /docs/ overrides: its theme searches in a worker and writes results as HTML.
DOCUMENTATION: dict[str, Any] = {"worker-src": [SELF], "require-trusted-types-for": None, "trusted-types": None}


def documentation_headers(headers: dict[str, str], path: str, url: str) -> None:
    """Add the Content-Security-Policy of the documentation to `headers` if `url` is in the documentation. WhiteNoise
    calls this function for each file that it serves.
    """
    if url.startswith("/docs/"):
        from csp.utils import build_policy  # reads the settings

        headers["Content-Security-Policy"] = build_policy(replace=DOCUMENTATION)


# Pages may use no browser feature of this list except writing to the clipboard.
PERMISSIONS = (
    "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), microphone=(), "
    "midi=(), payment=(), usb=(), clipboard-write=(self)"
)
