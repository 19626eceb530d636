"""The option that writes the golden renderings anew."""

from __future__ import annotations


def pytest_addoption(parser):
    parser.addoption("--update-goldens", action="store_true", help="Write tests/codes/*/golden.txt from what is found.")
