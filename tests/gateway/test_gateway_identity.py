"""Who asks."""

import hmac

import pytest

from backends.gateway import identity
from backends.gateway.config import ConfigError, GatewayConfig, Upstream, resolve_env
from backends.gateway.identity import Identities
from backends.gateway.refusal import Refusal
from tenants.tenant import Identity, Tenant

KEYS = {"${env:A}": "key-a", "${env:B}": "key-b"}
KEYED = Tenant(name="keyed", identity=Identity(api_key="${env:A}"))
OTHER = Tenant(name="other", identity=Identity(api_key="${env:B}"))
OPEN = Tenant(name="open")


def identities(*tenants: Tenant, default: str | None = None) -> Identities:
    return Identities(tenants, default, KEYS.__getitem__)


@pytest.mark.parametrize(
    ("authorization", "header", "expected"),
    [
        ("Bearer key-a", None, "keyed"),
        ("bearer  key-b ", None, "other"),
        ("Bearer key-a", "keyed", "keyed"),
        (None, "open", "open"),
        ("Bearer nope", None, (401, "unknown_key")),
        ("Bearer nope", "open", (401, "unknown_key")),
        ("Bearer key-a", "open", (400, "tenant_mismatch")),
        (None, "keyed", (401, "missing_key")),
        (None, None, (401, "missing_key")),
        (None, "nobody", (400, "unknown_tenant")),
        ("Basic key-a", None, (401, "missing_key")),
    ],
)
def test_a_key_decides_and_a_tenant_with_a_key_is_reached_by_it_alone(authorization, header, expected):
    """Key first; the header only for tenants that have none; every contradiction is refused with its reason."""
    who = identities(KEYED, OTHER, OPEN)
    if isinstance(expected, str):
        assert who.tenant(authorization, header).name == expected
    else:
        with pytest.raises(Refusal) as refused:
            who.tenant(authorization, header)
        assert (refused.value.status, refused.value.reason) == expected


def test_without_any_key_configured_a_client_s_key_means_nothing():
    """Clients must send some key to most servers; it is no reason to refuse when none is asked for."""
    who = identities(OPEN)
    assert who.tenant("Bearer whatever", "open").name == "open"
    with pytest.raises(Refusal) as refused:
        who.tenant("Bearer whatever", None)
    assert (refused.value.status, refused.value.reason) == (400, "missing_tenant")


def test_a_default_tenant_takes_the_unnamed_but_never_a_wrong_key():
    """The default stands in for a missing or unknown name; an unknown key stays 401."""
    who = identities(KEYED, OPEN, default="open")
    assert who.tenant(None, None).name == "open"
    assert who.tenant(None, "nobody").name == "open"
    with pytest.raises(Refusal) as refused:
        who.tenant("Bearer nope", None)
    assert refused.value.status == 401


def test_a_key_is_compared_with_every_tenant_s_key_in_constant_time(monkeypatch):
    """All comparisons are made, each by compare_digest on digests of one length, whichever key matches."""
    compared = []

    def counting(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return hmac.compare_digest(left, right)

    monkeypatch.setattr(identity, "hmac", type("H", (), {"compare_digest": staticmethod(counting)}))
    who = identities(KEYED, OTHER)
    for key in ("key-a", "key-b"):
        compared.clear()
        who.tenant(f"Bearer {key}", None)
        assert compared == [(32, 32), (32, 32)]


def test_keys_that_cannot_tell_tenants_apart_are_refused():
    """Two tenants with one key, or an empty key, are a wrong configuration; the message holds no key."""
    twin = Tenant(name="twin", identity=Identity(api_key="${env:A}"))
    with pytest.raises(ConfigError, match="'keyed' and 'twin'") as error:
        identities(KEYED, twin)
    assert "key-a" not in str(error.value)
    with pytest.raises(ConfigError, match="empty"):
        Identities((KEYED,), None, lambda _: " ")


def test_references_are_resolved_from_the_environment_only(monkeypatch):
    """A missing variable is named, so that it can be set."""
    monkeypatch.setenv("GATEWAY_KEY", "s3cret")
    assert resolve_env("${env:GATEWAY_KEY}") == "s3cret"
    with pytest.raises(ConfigError, match="GATEWAY_NO_SUCH"):
        resolve_env("${env:GATEWAY_NO_SUCH}")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tenants": ()}, "at least one tenant"),
        ({"upstreams": ()}, "at least one upstream"),
        ({"tenants": (OPEN, OPEN)}, "configured twice"),
        ({"upstreams": (Upstream(name="u", url="ftp://x"),)}, "not http"),
        ({"default_tenant": "nobody"}, "known: open"),
        ({"tenants": (KEYED,), "default_tenant": "keyed"}, "has an API key"),
        ({"policy": "nope"}, "unknown policy"),
        ({"tenants": (Tenant(name="a\nb"),)}, "printable"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_at_once(more, message):
    """Each with a sentence that says what would be right."""
    fields = {"tenants": (OPEN,), "upstreams": (Upstream(name="u", url="localhost:1"),), **more}
    with pytest.raises(ValueError, match=message):
        GatewayConfig(**fields)
