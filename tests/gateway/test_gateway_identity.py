"""Who asks."""

import hmac
import os

import pytest

from backends.gateway import identity
from backends.gateway.config import ConfigError, GatewayConfig, Upstream
from backends.gateway.identity import Identities
from backends.gateway.refusal import Refusal
from backends.reference import SecretError, resolve_references
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


def test_a_reference_is_a_variable_or_a_file(monkeypatch, tmp_path):
    """White space around a file's line is none of the key; a mark of UTF-8 neither."""
    monkeypatch.setenv("GATEWAY_KEY", "s3cret")
    file = tmp_path / "with space.key"
    file.write_bytes(b"\xef\xbb\xbf  fr0m-file \r\n\n")
    assert resolve_references("${env:GATEWAY_KEY}") == "s3cret"
    assert resolve_references(f"${{file:{file}}}") == "fr0m-file"
    monkeypatch.chdir(tmp_path)
    assert resolve_references("Bearer ${file:with space.key}:${env:GATEWAY_KEY}") == "Bearer fr0m-file:s3cret"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"s3cret\nline", "more than one line"),
        (b"s3cret\x00", "more than one line"),
        (b"\xff\xfes3cret", "more than one line"),
        (b"s3cret" * 20_000, "more than one line"),
    ],
)
def test_a_file_without_a_key_is_named_and_nothing_of_it_shown(tmp_path, content, said):
    file = tmp_path / "the.key"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SecretError) as caught:
        resolve_references(f"${{file:{file}}}")
    assert str(file) in str(caught.value)
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(caught.value.__cause__)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    """A folder, and a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe"):
        with pytest.raises(SecretError, match="is no regular file"):
            resolve_references(f"${{file:{tmp_path / name}}}")


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_named(monkeypatch, value):
    """So that it can be set; an empty one is none."""
    monkeypatch.delenv("GATEWAY_NO_SUCH", raising=False)
    if value is not None:
        monkeypatch.setenv("GATEWAY_NO_SUCH", value)
    with pytest.raises(SecretError, match="GATEWAY_NO_SUCH is not set"):
        resolve_references("${env:GATEWAY_NO_SUCH}")


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
