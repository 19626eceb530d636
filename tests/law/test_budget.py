"""A file that passes five hundred lines holds more than one idea."""

LIMIT = 500


def test_no_file_is_too_long(sources):
    assert {source.path: lines for source in sources if (lines := len(source.text.splitlines())) > LIMIT} == {}
