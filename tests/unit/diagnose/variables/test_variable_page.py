"""The page of variables is what the tables say."""

from repository_scripts import script


def test_the_page_is_up_to_date():
    with script("variables_page") as pages:
        text = pages.PAGE.read_text(encoding="utf-8")
        assert text == pages.page(), "run scripts/variables_page.py"
