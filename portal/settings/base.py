"""Django's settings. Values that differ between hosts are environment variables (`portal.settings.environment`)."""

from __future__ import annotations

import sys
from pathlib import Path

from django.templatetags.static import static
from django.utils.translation import gettext_lazy as _
from psycopg.conninfo import conninfo_to_dict

from portal.settings import environment as env
from portal.settings.logs import LOGGING as LOGGING
from portal.settings.security_headers import SIGMA, documentation_headers
from serving.redis_url import CONNECT_S, celery_broker, celery_tls

env.check()


def database(url: str, *, pool: int = 0, deadline_s: float = 0.0) -> dict[str, object]:
    """Return Django's DATABASES entry for a libpq URI: `postgresql://user@host:port/name?host=/socket/folder`.

    A URI may list several hosts. Each new connection then goes to the first of them that accepts writes, so processes
    follow a failover.

    `pool`: the number of pooled connections, which all requests share; 0 means that each thread has its own connection.
    `deadline_s`: the longest time in seconds that a request may take, so no wait for PostgreSQL may take longer.
    """
    given = conninfo_to_dict(url)
    if "," in str(given.get("host", "")):
        given.setdefault("target_session_attrs", "read-write")
    bounds: dict[str, object] = {}
    if pool:
        from portal.database_time_limits import connection_options, pool_options

        options = str(given.pop("options", ""))
        bounds = {"pool": pool_options(pool, deadline_s), **connection_options(deadline_s, options)}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given.pop("dbname", "borg"),
        "USER": given.pop("user", ""),
        "PASSWORD": given.pop("password", ""),
        "HOST": given.pop("host", ""),
        "PORT": given.pop("port", ""),
        "CONN_MAX_AGE": 0 if pool else 600,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"application_name": "borg-portal", **bounds, **given},
    }


BORG_HOME = env.home()
DEBUG = env.flag("BORG_DEBUG")
SECRET_KEY = env.text("BORG_SECRET_KEY")
ALLOWED_HOSTS = env.names("BORG_ALLOWED_HOSTS")
PORTAL_URL = env.text("BORG_PORTAL_URL")
CSRF_TRUSTED_ORIGINS = [PORTAL_URL]
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PORTAL_URL.startswith("https:")
SECURE_HSTS_SECONDS = env.number("BORG_HSTS_SECONDS") if PORTAL_URL.startswith("https:") else 0
CONTENT_SECURITY_POLICY = {"DIRECTIVES": SIGMA}

BORG_ZONE = env.text("BORG_ZONE")
BORG_REDIS_URL = env.text("BORG_REDIS_URL")
BORG_DNS_HOST, BORG_DNS_PORT = env.text("BORG_DNS_HOST"), env.number("BORG_DNS_PORT")
BORG_DNS_TTL, BORG_DNS_NEGATIVE_TTL = env.number("BORG_DNS_TTL"), env.number("BORG_DNS_NEGATIVE_TTL")
BORG_DNS_REVERSE, BORG_DNS_CAA = env.names("BORG_DNS_REVERSE"), env.text("BORG_DNS_CAA")
BORG_DNS_TRANSFER, BORG_DNS_KEYS = env.names("BORG_DNS_TRANSFER"), env.names("BORG_DNS_KEYS")
BORG_DNS_NSID, BORG_DNS_RATE = env.text("BORG_DNS_NSID"), env.number("BORG_DNS_RATE")
BORG_DNS_SECONDARIES = env.names("BORG_DNS_SECONDARIES")
BORG_DNS_RESOLVERS = env.names("BORG_DNS_RESOLVERS")
BORG_DNS_SNAPSHOT = env.folder("BORG_DNS_SNAPSHOT", "names")
BORG_DNS_METRICS_HOST, BORG_DNS_METRICS_PORT = (env.text("BORG_DNS_METRICS_HOST"), env.number("BORG_DNS_METRICS_PORT"))
BORG_DNS_STALE, BORG_DNS_PROCESSES = env.number("BORG_DNS_STALE"), env.number("BORG_DNS_PROCESSES")
BORG_LINK_HOST, BORG_LINK_PORT = env.text("BORG_LINK_HOST"), env.number("BORG_LINK_PORT")
BORG_LINK_SHARED_PORT = env.flag("BORG_LINK_SHARED_PORT")
BORG_LINK_URL = env.text("BORG_LINK_URL")
BORG_AUTHORITY = env.text("BORG_AUTHORITY") or str(BORG_HOME / "authority")
BORG_PACKAGE_STORE = env.text("BORG_PACKAGE_STORE") or (BORG_HOME / "packages").as_uri()
BORG_ARCHIVE = env.text("BORG_ARCHIVE") or (BORG_HOME / "archive").as_uri()
BORG_ARCHIVE_KEYS = env.text("BORG_ARCHIVE_KEYS")
BORG_SECRET_KEYS = env.text("BORG_SECRET_KEYS")
BORG_LINK_CERTIFICATE, BORG_LINK_KEY = env.text("BORG_LINK_CERTIFICATE"), env.text("BORG_LINK_KEY")
BORG_USAGE_KEEP_HOURS = env.number("BORG_USAGE_KEEP_HOURS")
BORG_SQL_SECONDS, BORG_SQL_MEMORY_MIB = env.number("BORG_SQL_SECONDS"), env.number("BORG_SQL_MEMORY_MIB")
# The function that reads archived metered hours (`quota.models.metered_hours`).
QUOTA_ARCHIVED_HOURS = "scheduling.history.archive.metered.read_hours"
# Whether past states of cells are rebuilt in a process of its own (`scheduling.history.moments`).
BORG_MOMENT_PROCESS = True
BORG_MAX_TASKS_PER_JOB = env.number("BORG_MAX_TASKS_PER_JOB")
BORG_MAX_BULK_JOBS = env.number("BORG_MAX_BULK_JOBS")
BORG_MAX_CRON_JOBS_PER_TENANT = env.number("BORG_MAX_CRON_JOBS_PER_TENANT")
BORG_MAX_CRON_JOBS_PER_CELL = env.number("BORG_MAX_CRON_JOBS_PER_CELL")
BORG_MAX_TEMPLATES_PER_TENANT = env.number("BORG_MAX_TEMPLATES_PER_TENANT")
BORG_CRON_MIN_PERIOD_S = env.number("BORG_CRON_MIN_PERIOD_S")
BORG_MAX_WORKFLOWS_PER_TENANT = env.number("BORG_MAX_WORKFLOWS_PER_TENANT")
BORG_MAX_WORKFLOWS_PER_CELL = env.number("BORG_MAX_WORKFLOWS_PER_CELL")
BORG_MAX_WATCHES = env.number("BORG_MAX_WATCHES")
BORG_MAX_WATCHES_PER_CALLER = env.number("BORG_MAX_WATCHES_PER_CALLER")
BORG_RATE_PER_TOKEN = env.number("BORG_RATE_PER_TOKEN")
BORG_RATE_PER_TENANT = env.number("BORG_RATE_PER_TENANT")
BORG_RATE_PER_ADDRESS = env.number("BORG_RATE_PER_ADDRESS")
BORG_SRE_SECOND_FACTOR = env.flag("BORG_SRE_SECOND_FACTOR")
BORG_TOKEN_DAYS = env.number("BORG_TOKEN_DAYS")
BORG_CELLS = env.names("BORG_CELLS")
DATA_UPLOAD_MAX_MEMORY_SIZE = env.number("BORG_MAX_BODY_BYTES")

EMAIL_HOST, EMAIL_PORT = env.text("BORG_SMTP_HOST"), env.number("BORG_SMTP_PORT")
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = env.text("BORG_SMTP_USER"), env.text("BORG_SMTP_PASSWORD")
EMAIL_USE_TLS, EMAIL_USE_SSL = (env.text("BORG_SMTP_TLS") == way for way in ("starttls", "tls"))
EMAIL_BACKEND = f"django.core.mail.backends.{'smtp' if EMAIL_HOST else 'console'}.EmailBackend"
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env.text("BORG_MAIL_FROM")
BORG_WEBHOOK_NETWORKS = env.networks("BORG_WEBHOOK_NETWORKS")

INSTALLED_APPS = [
    "portal",  # first, so that its templates override those of the other apps
    "unfold",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    # `portal.admin_site` imports the pages of the console. So a process that does not serve pages does not import them.
    "django.contrib.admin.apps.SimpleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.contrib.postgres",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.usersessions",
    "rest_framework",
    "drf_spectacular",
    "channels",
    "django_celery_beat",
    "quota",
    "scheduling",
    "naming",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "portal.http.compression.CompressionMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "portal.http.request_ids.RequestMiddleware",
    "portal.second_factor_gate.SecondFactorMiddleware",
]
BORG_OIDC_URL, BORG_OIDC_NAME = env.text("BORG_OIDC_URL"), env.text("BORG_OIDC_NAME")
OIDC_APP = "allauth.socialaccount.providers.openid_connect"
if BORG_OIDC_URL:
    INSTALLED_APPS.append(OIDC_APP)  # only then, because it adds the URLs of the provider
ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "loaders": [("django.template.loaders.cached.Loader", ["portal.plain_templates.PlainLoader"])],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
BORG_REQUEST_DEADLINE_S = env.number("BORG_REQUEST_DEADLINE_S")
DATABASES = {
    "default": database(
        env.text("BORG_DATABASE_URL"), pool=env.number("BORG_DATABASE_POOL"), deadline_s=BORG_REQUEST_DEADLINE_S
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTHENTICATION_BACKENDS = [
    "portal.accounts.PasswordBackend",
    # This backend keeps the sessions valid that it began before the backend above existed.
    "django.contrib.auth.backends.ModelBackend",
]
PASSWORD_HASHERS = ["portal.http.password_hashing.BoundedHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "portal.accounts.ClosedSignupAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*", "password2*"]
ACCOUNT_FORMS = {"reset_password": "portal.accounts.ForgottenPasswordForm"}
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False  # no mail to people without an account
ACCOUNT_PREVENT_ENUMERATION = True
PASSWORD_RESET_TIMEOUT = 3600
ACCOUNT_DEFAULT_HTTP_PROTOCOL = PORTAL_URL.partition(":")[0]
SOCIALACCOUNT_ADAPTER = "portal.single_sign_on.ProviderAdapter"
# A form that leads to another site would violate the Content-Security-Policy.
SOCIALACCOUNT_LOGIN_ON_GET = True
BORG_OIDC_GROUPS = env.text("BORG_OIDC_GROUPS")
BORG_OIDC_ROLES = env.text("BORG_OIDC_ROLES")
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "company",
                "name": BORG_OIDC_NAME,
                "client_id": env.text("BORG_OIDC_CLIENT"),
                "secret": env.text("BORG_OIDC_SECRET"),
                "settings": {"server_url": BORG_OIDC_URL},
            }
        ],
    }
}
MFA_ADAPTER = "portal.accounts.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
# Browsers offer passkeys without TLS only for localhost.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not PORTAL_URL.startswith("https:")
MFA_TOTP_TOLERANCE = 1  # the clock of a telephone may differ by 30 s
MFA_ALLOW_UNVERIFIED_EMAIL = True
# `quota.tenancy.sign_in_limits` limits wrong passwords. allauth limits only wrong codes of second factors.
ACCOUNT_RATE_LIMITS = {"login": None, "login_failed": "10/m/ip,5/300s/key"}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False  # all texts are English, and looking up translations took 7 % of the time of a page
STATIC_URL = "/static/"
# `make install` collects and compresses the static files. Their names contain a hash of their content, so that browsers
# may cache them without a time limit.
STATIC_ROOT = Path(sys.prefix) / "borg-static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
# `make install` builds the documentation into `docs` below this folder, and WhiteNoise serves it at /docs/.
WHITENOISE_ROOT = Path(sys.prefix) / "borg-site"
WHITENOISE_INDEX_FILE = True
WHITENOISE_ADD_HEADERS_FUNCTION = documentation_headers

# The cache contains only the rate limits of sign-in, per process, because sign-in must not depend on Redis.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "OPTIONS": {"MAX_ENTRIES": 50_000},  # so that an attacker cannot displace counts by adding new ones
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["portal.api.auth.TokenAuthentication", "portal.api.auth.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["portal.api.rendering.FastJSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["portal.api.parsers.LimitedJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "portal.api.schema.Schema",
    "EXCEPTION_HANDLER": "portal.http.errors.problem",
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Borg Portal",
    "DESCRIPTION": "Cells, machines, jobs, tasks, names and quota of a Borg installation.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "ENUM_NAME_OVERRIDES": {
        "CapabilityKindEnum": "quota.api.capabilities.KINDS",
        "ChangeKindEnum": "scheduling.api.explanations.KINDS",
        "CreditKindEnum": "quota.models.credits.KINDS",
        "ChangeOutcomeEnum": ["submitted", "updated", "unchanged", "refused"],
        "CronRunOutcomeEnum": ["submitted", "skipped", "missed", "rejected"],
        "RoleEnum": ["viewer", "operator", "buyer", "owner"],
        "ScopeEnum": ["read", "write", "admin"],
        "ServiceAccountRoleEnum": "quota.tenancy.service_accounts.ROLES",
        "ServiceAccountScopeEnum": "quota.tenancy.service_accounts.SCOPES",
        "WorkflowChangeOutcomeEnum": ["submitted", "unchanged", "refused"],
        "WorkflowNodeStateEnum": ["waiting", "ready", "running", "succeeded", "failed", "skipped", "cancelled"],
        "WorkflowStateEnum": ["running", "paused", "cancelling", "succeeded", "failed", "cancelled"],
    },
}

CELERY_BROKER_URL, _BROKER_OPTIONS = celery_broker(BORG_REDIS_URL)
CELERY_BROKER_USE_SSL = celery_tls(BORG_REDIS_URL)
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 600,
    "socket_keepalive": True,
    # Without these limits, a worker or beat would wait for ever for a server whose host is cut off.
    "socket_connect_timeout": CONNECT_S,
    "socket_timeout": 10.0,
    "health_check_interval": 5,
    **_BROKER_OPTIONS,
}
CELERY_TASK_DEFAULT_QUEUE = "borg"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BEAT_SCHEDULER = "serving.beat:StandbyScheduler"
CELERY_BEAT_MAX_LOOP_INTERVAL = 5
CELERY_BEAT_SCHEDULE = {
    "notices-send": {"task": "quota.notices_send", "schedule": 5.0, "options": {"expires": 5.0}},
    "budgets-watch": {"task": "quota.budgets_watch", "schedule": 60.0, "options": {"expires": 60.0}},
    "usage-charge": {"task": "quota.usage_charge", "schedule": 1800.0},
    "invoices-close-due": {"task": "quota.invoices_close_due", "schedule": 1800.0},
    "orders-advance": {"task": "quota.orders_advance", "schedule": 10.0, "options": {"expires": 10.0}},
    "shortfalls-examine": {"task": "quota.shortfalls_examine", "schedule": 30.0, "options": {"expires": 30.0}},
    "quota-forget-old": {"task": "quota.forget_old", "schedule": 3600.0, "options": {"expires": 3600.0}},
    "packages-sweep": {"task": "scheduling.packages_sweep", "schedule": 600.0},
    "config-deliveries-sweep": {"task": "scheduling.config_deliveries_sweep", "schedule": 3600.0},
    "capacity-samples": {"task": "scheduling.capacity_samples", "schedule": 600.0, "options": {"expires": 600.0}},
    "lapses": {"task": "scheduling.lapses", "schedule": 60.0, "options": {"expires": 60.0}},
    "metering": {"task": "scheduling.metering", "schedule": 300.0, "options": {"expires": 300.0}},
    "archive": {"task": "scheduling.archive", "schedule": 900.0, "options": {"expires": 900.0}},
    "job-notices": {"task": "scheduling.job_notices", "schedule": 30.0, "options": {"expires": 30.0}},
    "journal-partitions": {"task": "scheduling.journal_partitions", "schedule": 300.0},
    "checkpoints": {"task": "scheduling.checkpoints", "schedule": 300.0, "options": {"expires": 300.0}},
    "promises": {"task": "scheduling.promises", "schedule": 60.0, "options": {"expires": 60.0}},
    "statistics": {"task": "scheduling.statistics", "schedule": 30.0, "options": {"expires": 30.0}},
    "statistics-forget": {"task": "scheduling.statistics_forget", "schedule": 3600.0, "options": {"expires": 3600.0}},
    "shells-sweep": {"task": "scheduling.shells_sweep", "schedule": 60.0, "options": {"expires": 60.0}},
    "sessions-clear": {"task": "scheduling.sessions_clear", "schedule": 86400.0},
}

UNFOLD = {
    "SITE_TITLE": _("Borg Portal"),
    "SITE_HEADER": _("Borg Portal"),
    "SITE_SUBHEADER": _("SRE console"),
    "SITE_SYMBOL": "hub",
    "SHOW_VIEW_ON_SITE": False,
    "STYLES": [lambda request: static("portal/tokens.css"), lambda request: static("portal/palette.css")],
    "SCRIPTS": [lambda request: static("portal/palette.js")],
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("portal/icon.svg")}],
}
