"""Signatures of external servers that are unreachable or refuse a request."""

from __future__ import annotations

from paceline.signatures.signature import Signature, cause, note
from paceline.signatures.tier import Tier

_FIX = (
    "download on a login node before the job, then export HF_HUB_OFFLINE=1 (WANDB_MODE=offline); or"
    " the site's proxy: export https_proxy=http://HOST:PORT"
)
_WHY = "compute nodes of most clusters reach only the cluster itself"

SIGNATURES: tuple[Signature, ...] = (
    cause(
        "no-internet",
        "connectionpool|couldn't reach|thrown while requesting|failed to establish a new"
        " connection|urlopen error|could not resolve host:|connecterror|connecttimeout|endpoint"
        " url|connection broken by|proxyerror|couldn't connect to server|failed to connect to",
        r"HTTPS?ConnectionPool\(host='(?P<pool>[^']+)'.*(?:Max retries exceeded|timed out)"
        r"|Couldn't reach (?:'[^']*' on the (?P<hub>Hub)|https?://(?P<url>[^/\s]+))"
        r"|thrown while requesting \w+ https?://(?P<requested>[^/\s]+)"
        r"|Failed to establish a new connection: \[Errno (?:-2|-3|-5|101|110|113)\]"
        r"|urlopen error (?:\[Errno (?:-2|-3|-5|101|110|111|113)\]|timed out)"
        r"|[Cc]ould not resolve host: (?P<curl>[\w.-]+\.[a-z]+)|ConnectError: \[Errno"
        r" (?:-2|-3|-5|101|110|111|113)\]"
        r"|httpx\.ConnectTimeout|Could not connect to the endpoint URL:"
        r" \"https?://(?P<endpoint>[^/\"]+)"
        r"|Failed to connect to (?P<git>[\w-]+\.[\w.-]*[a-z]) port (?:443|80)\b",
        what=(
            "{pool} cannot be reached: this node has no access to the internet (likely)",
            "{requested} cannot be reached: this node has no access to the internet (likely)",
            "{url} cannot be reached: this node has no access to the internet (likely)",
            "{curl} cannot be reached: this node has no access to the internet (likely)",
            "{endpoint} cannot be reached: this node has no access to the internet (likely)",
            "{git} cannot be reached: this node has no access to the internet (likely)",
            "a server outside cannot be reached: this node has no access to the internet (likely)",
        ),
        fix=_FIX,
        why=_WHY,
        tier=Tier.COARSE,
        unless=r"host='(?:localhost|127\.|10\.|172\.(?:1[6-9]|2\d|3[01])\.|192\.168\.|0\.0\.0\.0"
        r"|\[?::)"
        r"|retry loop|[Rr]etrying|will retry",
    ),
    cause(
        "no-internet",
        "couldn't connect to 'http|localentrynotfound|in the local cache|disk cache|in the cached"
        " path|offlinemode|on the local disk",
        r"We couldn't connect to 'https?://(?P<host>[^'/]+)|LocalEntryNotFoundError"
        r"|cannot find the (?:requested files in the (?:(?:local|disk) cache|cached path)"
        r"|appropriate snapshot folder for the specified revision on the local disk)",
        what=(
            "{host} cannot be reached: this node has no access to the internet (likely)",
            "a server outside cannot be reached: this node has no access to the internet (likely)",
        ),
        fix=_FIX,
        why=_WHY,
        tier=Tier.COARSE,
        key="not-in-cache",
        unless=r"[Rr]etrying|will retry",
    ),
    cause(
        "no-internet",
        "connection broken by",
        r"Retrying \(Retry\(total=0,.*after connection broken by"
        r" '(?:NewConnectionError|ConnectTimeoutError|ProxyError"
        r"|SSLError|NameResolutionError)",
        what=(
            "the package index cannot be reached: this node has no access to the internet (likely)"
        ),
        fix=(
            "install on a login node before the job, or the site's proxy: export"
            " https_proxy=http://HOST:PORT"
        ),
        why=_WHY,
        tier=Tier.MENTIONED_EXCEPTION,
    ),
    note(
        "server-answered",
        "client error|403 forbidden|gated repo|repository not found"
        " for|repositorynotfounderror|gatedrepoerror|revisionnotfounderror|entry not found for|too"
        " many requests",
        r"\b4\d\d (?:Client Error|Forbidden|Too Many Requests)|[Cc]annot access gated repo"
        r"|(?:Repository|Entry|Revision) Not Found for"
        r" url|(?:RepositoryNotFound|GatedRepo|RevisionNotFound)Error",
    ),
)
