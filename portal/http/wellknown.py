"""The public keys that verify the identities of tasks, at the standard URLs (RFC 7517, OpenID Connect Discovery)."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.http import require_safe

from scheduling.identity.signing_keys import PUBLISH_S, public_keys
from scheduling.identity.task_tokens import ALGORITHM, jwk


@require_safe
def keys(request: HttpRequest) -> HttpResponse:
    """Return the public keys as a JWK Set.

    The portal adds a new key to the set long before it signs with the key. So clients that cache the set always have
    the right key.
    """
    answer = JsonResponse({"keys": [jwk(kid, public) for kid, public in public_keys().items()]})
    answer["Cache-Control"] = f"public, max-age={int(PUBLISH_S / 2)}"
    return answer


@require_safe
def configuration(request: HttpRequest) -> HttpResponse:
    """Return the metadata that programs need to verify the identities of tasks, in the format of OpenID Connect
    Discovery. People cannot sign in to other programs with it.
    """
    issuer = settings.PORTAL_URL
    return JsonResponse(
        {
            "issuer": issuer,
            "jwks_uri": f"{issuer}/.well-known/jwks.json",
            "id_token_signing_alg_values_supported": [ALGORITHM],
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
        }
    )


urlpatterns = [path(".well-known/jwks.json", keys), path(".well-known/openid-configuration", configuration)]
