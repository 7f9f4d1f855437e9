"""A plugin of pytest: tests run in the order of the files that it was given, and below a folder unit tests first.

The suite itself begins with the longest, which is for several workers.
"""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    places = {name: place for place, name in enumerate(config.args)}

    def place(item):
        file = item.nodeid.partition("::")[0]
        return places.get(file, len(places)), not file.startswith("tests/unit/")

    items.sort(key=place)
