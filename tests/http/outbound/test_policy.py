"""The operator's policy: what each entry opens and closes, and what a refusal says."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest

from duly.http import EgressPolicy, TargetNotAllowedError, parse_target
from duly.http.ports import BAD_PORTS
from duly.model.errors import InvalidInputError


def _allows(policy: EgressPolicy, url: str) -> bool:
    try:
        policy.check_target(parse_target(url))
    except TargetNotAllowedError:
        return False
    return True


def _dials(policy: EgressPolicy, address: str, port: int = 80, host: str = "a.example.com") -> bool:
    try:
        policy.check_address(ip_address(address), port, host)
    except TargetNotAllowedError:
        return False
    return True


def test_default_policy_closes_private_targets() -> None:
    """Public is open, the rest is not."""
    policy = EgressPolicy()
    assert _allows(policy, "https://example.com/")
    assert not _allows(policy, "http://127.0.0.1:8080/")
    assert not _allows(policy, "http://localhost:8080/")


def test_open_loopback_opens_nothing_else() -> None:
    """A developer's machine: 127.0.0.0/8, ::1 and localhost on web ports; neither 0.0.0.0 nor mapped forms nor 10/8."""
    policy = EgressPolicy.parse(allow_loopback=True)
    assert policy.opens_loopback
    for url in ("http://127.0.0.1:3000/", "http://127.9.9.9/", "http://[::1]:8000/", "http://localhost:5000/"):
        assert _allows(policy, url)
    for url in ("http://0.0.0.0:3000/", "http://[::ffff:127.0.0.1]:3000/", "http://10.0.0.1/", "http://db/"):
        assert not _allows(policy, url)
    assert not _allows(policy, "http://127.0.0.1:5432/")
    assert not _allows(policy, "http://foo.localhost/")


def test_wide_entries_never_open_metadata_or_disguises() -> None:
    """0.0.0.0/0 and ::/0 open private ranges, and that is all."""
    policy = EgressPolicy.parse(["0.0.0.0/0", "::/0"])
    for address in ("10.0.0.1", "127.0.0.1", "fd00::1", "192.168.1.1", "169.254.1.1"):
        assert _dials(policy, address)
    for address in (
        "169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "0.0.0.0", "::",
        "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::1", "224.0.0.1", "ff02::1", "255.255.255.255",
    ):  # fmt: skip
        assert not _dials(policy, address)


@pytest.mark.parametrize(
    "host",
    [
        "a.test", "a.invalid", "a.example", "a.home.arpa", "1.0.0.127.in-addr.arpa", "kubernetes.default.svc", "a.svc",
        "kubernetes.default", "localhost.localdomain", "localhost6.localdomain6", "a.b.localhost", "nas.lan", "x.corp",
        "a.onion", "a.i2p", "a.alt", "metadata.goog", "metadata.google.internal", "a.consul", "gateway.docker.internal",
    ],
)  # fmt: skip
def test_special_names_are_closed_until_named(host: str) -> None:
    """Special-use and inside-only names are refused without a look-up; host= opens exactly one."""
    assert not _allows(EgressPolicy.parse(["0.0.0.0/0"]), f"http://{host}/")
    assert _allows(EgressPolicy.parse([f"host={host}"]), f"http://{host}/")


def test_deny_wins_over_everything() -> None:
    """By range and by name, over public addresses, allow ranges and allow names."""
    policy = EgressPolicy.parse(["10.0.0.0/8", "host=svc.corp"], ["10.1.0.0/16", "8.8.8.8", "host=svc.corp"])
    assert _dials(policy, "10.2.0.1")
    assert not _dials(policy, "10.1.0.1")
    assert not _dials(policy, "8.8.8.8")
    assert not _dials(policy, "10.2.0.1", host="svc.corp")
    assert not _allows(policy, "http://svc.corp/")


def test_what_passed_is_remembered_and_nothing_else() -> None:
    """A target that passed passes again; one that differs from it in anything is looked at for itself."""
    policy = EgressPolicy.parse(deny=["8.8.4.4"])
    for _ in range(2):
        for url in ("http://example.com/a", "http://8.8.8.8/a", "https://example.com/" + "a" * 600):
            policy.check_target(parse_target(url))
        for url in ("http://example.com:22/a", "http://8.8.4.4/a", "http://8.8.8.8:22/a", "http://db/a"):
            with pytest.raises(TargetNotAllowedError):
                policy.check_target(parse_target(url))
    stricter = replace(policy, deny_hosts=frozenset({"example.com"}))
    assert stricter != policy
    with pytest.raises(TargetNotAllowedError):
        stricter.check_target(parse_target("http://example.com/a"))
    assert EgressPolicy.parse(deny=["8.8.4.4"]) == policy


def test_memory_of_targets_has_an_end() -> None:
    """Whatever URLs come, a few thousand are remembered."""
    policy = EgressPolicy()
    for n in range(10_000):
        policy.check_target(parse_target(f"http://example.com/{n}"))
    assert len(policy._passed) <= 4096


def test_exact_names_only() -> None:
    """host= opens one name, in any case and with a final dot, and no other."""
    policy = EgressPolicy.parse(["host=DB", "host=b\u00fccher.internal."])
    assert _allows(policy, "http://db/")
    assert _allows(policy, "http://xn--bcher-kva.internal/")
    assert not _allows(policy, "http://x.xn--bcher-kva.internal/")
    assert not _allows(policy, "http://db2/")
    assert not _allows(policy, "http://db:5432/")


@pytest.mark.parametrize("port", [1, 22, 25, 79, 81, 442, 444, 1023, *BAD_PORTS])
def test_closed_ports_need_a_setting(port: int) -> None:
    """Closed by default for names, literals and dials; a port entry opens that port, not addresses."""
    for policy in (EgressPolicy(), EgressPolicy.parse(["8.8.8.8/32", "host=example.com"])):
        assert not _allows(policy, f"http://example.com:{port}/")
        assert not _allows(policy, f"http://8.8.8.8:{port}/")
        assert not _dials(policy, "8.8.8.8", port)
    opened = EgressPolicy.parse(ports=[str(port)])
    assert _allows(opened, f"http://example.com:{port}/")
    assert not _allows(opened, f"http://10.0.0.1:{port}/")


@pytest.mark.parametrize("port", [80, 443, 1024, 3000, 4000, 5000, 5173, 8000, 8080, 8443, 8888, 9000, 9090, 65535])
def test_open_ports(port: int) -> None:
    """What webhooks usually listen on."""
    assert _allows(EgressPolicy(), f"http://example.com:{port}/")


def test_own_addresses_join_the_deny_set() -> None:
    """By ip and port, by ip alone, by a listener on every interface; IPv4-mapped spellings are undone."""
    policy = EgressPolicy.parse(
        ["10.0.0.0/8"], own=["10.0.0.5:8432", "10.0.0.6", "[::]:8080", "::ffff:10.0.0.7"], allow_loopback=True
    )
    assert not _dials(policy, "10.0.0.5", 8432)
    assert _dials(policy, "10.0.0.5", 8433)
    assert not _dials(policy, "10.0.0.6", 9999)
    assert not _dials(policy, "10.0.0.7", 80)
    assert not _dials(policy, "127.0.0.1", 8080)
    assert not _dials(policy, "::1", 8080)
    assert _dials(policy, "127.0.0.1", 8081)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"allow": ["10.0.0.1/8"]}, "10.0.0.1/8"),
        ({"allow": ["*.corp"]}, "*.corp"),
        ({"allow": ["host=*.corp"]}, "*.corp"),
        ({"allow": ["host=10.0.0.1"]}, "range"),
        ({"allow": [""]}, "DULY_EGRESS_ALLOW"),
        ({"deny": ["evil.example"]}, "DULY_EGRESS_DENY"),
        ({"ports": ["http"]}, "http"),
        ({"ports": [0]}, "0"),
        ({"ports": [70000]}, "70000"),
        ({"own": ["db:5432"]}, "db:5432"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, list[str]], part: str) -> None:
    """A setting that cannot be read is an error with the entry in it."""
    with pytest.raises(InvalidInputError) as caught:
        EgressPolicy.parse(**settings)  # type: ignore[arg-type]
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("url", "rule", "setting"),
    [
        ("http://10.0.0.1/", "private", "DULY_EGRESS_ALLOW"),
        ("http://169.254.169.254/", "metadata", "none"),
        ("http://example.com:22/", "port", "DULY_EGRESS_PORTS"),
        ("http://db/", "single_label", "DULY_EGRESS_ALLOW=host=…"),
        ("http://a.internal/", "special_use", "DULY_EGRESS_ALLOW=host=…"),
        ("http://8.8.4.4/", "deny", "DULY_EGRESS_DENY"),
    ],
)
def test_refusal_names_rule_and_setting(url: str, rule: str, setting: str) -> None:
    """Whoever reads it knows what refused the target and what an operator would change."""
    with pytest.raises(TargetNotAllowedError) as caught:
        EgressPolicy.parse(deny=["8.8.4.4"]).check_target(parse_target(url))
    assert (caught.value.rule, caught.value.setting) == (rule, setting)
    if setting != "none":
        assert setting in str(caught.value)
