"""A plugin of pytest: tests run in the order of the files that it was given, and below a folder the quick ones first.

The suite itself begins with the longest, which is for several workers.
"""

import pytest

from tests.mutants.near import slowness


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    places = {name: place for place, name in enumerate(config.args)}

    def place(item):
        file = item.nodeid.partition("::")[0]
        return places.get(file, len(places)), slowness(file)

    items.sort(key=place)
