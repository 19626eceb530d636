"""Words of bash, and hosts before a port."""

import pytest

from paceline.text.quoting import bracketed


@pytest.mark.parametrize(
    ("host", "written"),
    [("node1", "node1"), ("10.0.0.5", "10.0.0.5"), ("fd00::5", "[fd00::5]"), ("", "")],
)
def test_an_ipv6_address_stands_in_brackets_before_a_port(host, written):
    assert bracketed(host) == written
